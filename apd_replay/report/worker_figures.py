"""Figures of workers in one run: KV pools, links, waits of failed requests; and the log lines behind them."""

from __future__ import annotations

from collections import defaultdict

from apd_replay.report import charts, svg, timelines
from apd_replay.report.model import Figure, Link, Table
from apd_replay.report.numbers import number
from apd_replay.report.single_run import MOST_ROWS, run_figure, run_heading, run_key, run_query, store_href
from apd_replay.report.source import Row, Source, natural, ordered
from apd_replay.report.timelines import Panel, Strip

POOL_EVENTS = {"trim": svg.GREEN, "retract": svg.PURPLE, "pause": svg.ORANGE, "error": svg.RED}
OUTCOMES = {
    "ok": "success",
    "rejection": "rejection",
    "real_failure": "real failure",
    "waiting_timeout": "waiting timeout",
    "bootstrap_timeout": "bootstrap timeout",
}
TICKS = {
    "success": ("#9a9a9a", 0.8),
    "rejection": (svg.ORANGE, 1.3),
    "waiting timeout": (svg.PURPLE, 2.0),
    "bootstrap timeout": (svg.SKY, 2.0),
    "real failure": ("currentColor", 2.4),
}
FAILURES = {"rejection", "real_failure", "waiting_timeout", "bootstrap_timeout", "other"}
STEPS = 300


def pools(source: Source, run: Row) -> Figure | None:
    key = run_key(run)
    usage = source.query("pool_usage", **key, step=max(1e-3, (run["duration_s"] or 1.0) / STEPS))
    events = source.query("pool_events", **key)
    workers = ordered([r["worker"] for r in usage] + [r["worker"] for r in events])
    if not workers:
        return None
    panels, rows = [], []
    for worker in workers:
        steps = [(r["t"], r["low"], r["high"]) for r in usage if r["worker"] == worker]
        by_kind = {kind: [r["t"] for r in events if r["worker"] == worker and r["kind"] == kind] for kind in POOL_EVENTS}
        panels.append(Panel(worker, steps, by_kind))
        firsts = [min(ts) if ts else None for ts in by_kind.values()]
        rows.append([worker, max((h for _, _, h in steps), default=None), *(len(ts) for ts in by_kind.values()), *firsts])
    title = "KV pool usage of each D, with trims, retractions, pauses and errors"
    picture = timelines.usage(run_heading(title, run), panels, POOL_EVENTS, "seconds since the run's start")
    kinds = list(POOL_EVENTS)
    table = Table(
        "Each D", ("worker", "peak usage", *(f"{k}s" for k in kinds), *(f"first {k}, s" for k in kinds)), rows, engine=run["engine"]
    )
    return run_figure(
        run,
        "pools",
        title,
        "Line: highest usage in a step of time; band: lowest to highest. Rails below: one tick an event, their number on the right.",
        picture,
        table,
        run_query("pool_events", run),
    )


def links(source: Source, run: Row) -> Figure | None:
    transfers = source.query("links", **run_key(run))
    by_link: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for r in transfers:
        by_link[r["prefill_worker"], r["decode_worker"]].append(r)
    if not by_link:
        return None
    summary = {(r["prefill_worker"], r["decode_worker"]): r for r in source.query("link_summary", **run_key(run))}
    strips, rows = [], []
    for p, d in sorted(by_link, key=lambda link: (natural(link[0]), natural(link[1]))):
        whole, of_link = summary[p, d], by_link[p, d]
        failed = sum(r["outcome"] in FAILURES for r in of_link)
        marks = [(r["ended_t"], OUTCOMES[r["outcome"]]) for r in of_link if r["outcome"] in OUTCOMES]
        first = whole["first_failure_t"]
        latched = [] if first is None else [(first, whole["recovered_t"] or max(t for t, _ in marks), "latched")]
        strips.append(Strip(f"{p} > {d}", latched, marks, f"{number(failed)} of {number(len(of_link))}"))
        rows.append([f"{p}>{d}", *list(whole.values())[2:]])
    ticks = {name: tick for name, tick in TICKS.items() if any(k == name for s in strips for _, k in s.marks)}
    title = "Links P > D: first failure, rejections, successes, recovery"
    picture = timelines.strips(
        run_heading(title, run, f"{len(by_link)} links, {len(transfers):,} transfers"),
        strips,
        {"latched": "#f3d9c4"} if any(s.spans for s in strips) else {},
        ticks,
        "seconds since the run's start",
        step=17.0,
        note_title="failed",
    )
    columns = (
        "link",
        "attempts",
        "successes",
        "real failures",
        "rejections",
        "successes after the latch",
        "first real failure, s",
        "first rejection, s",
        "last rejection, s",
        "last success, s",
        "recovered, s",
    )
    return run_figure(
        run,
        "links",
        title,
        "One tick a transfer, when it ended. Shaded: from the link's first real failure to its recovery, or to its last transfer where it never recovered.",
        picture,
        Table("Each link", columns, rows, engine=run["engine"]),
        run_query("links", run),
    )


def waits(source: Source, run: Row) -> Figure | None:
    found = source.query("waits", **run_key(run))
    if not found:
        return None
    title = "How long failed requests had waited"
    n = sum(r["n"] for r in found)
    names = {r["error_kind"]: r for r in found}
    picture = charts.ecdf(
        run_heading(title, run, f"{n:,} failed requests"),
        {k: r["curve"] for k, r in names.items()},
        "seconds from dispatch to the failure (log scale)",
        counts={k: r["n"] for k, r in names.items()},
    )
    rows = [[k, r["n"], *(r["curve"][q] for q in (0, 50, 90, 99, 100))] for k, r in names.items()]
    return run_figure(
        run,
        "waits",
        title,
        "A rejection fails at once; a timeout waits its limit.",
        picture,
        Table("Waits, seconds", ("error kind", "n", "least", "P50", "P90", "P99", "most"), rows, engine=run["engine"]),
        run_query("waits", run),
    )


def log_lines(source: Source, run: Row) -> Table | None:
    """Which log lines stand behind a run's figures, with links to the files."""
    found = source.query("log_lines", **run_key(run))
    if not found:
        return None
    rows = [
        [
            r["worker"],
            r["kind"],
            r["peer"],
            r["lines"],
            r["first_t"],
            Link(f"{r['file']}:{r['first_line']}", store_href(run, r["file"])),
            r["last_line"],
        ]
        for r in found[:MOST_ROWS]
    ]
    return Table(
        f"Log lines behind {run['experiment']}, replicate {run['replicate']}",
        ("worker", "kind", "peer", "lines", "first, s", "first line", "last line"),
        rows,
        folded=True,
        engine=run["engine"],
    )
