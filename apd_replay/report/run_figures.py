"""Figures of single runs, from their rows: the session map, the KV pools, the links, the gaps, the waits."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from apd_replay.report import charts, svg, timelines
from apd_replay.report.charts import Heading
from apd_replay.report.model import Figure, Link, Table, stem
from apd_replay.report.numbers import MISSING, number, plain
from apd_replay.report.source import Row, Source, natural, ordered, query_text
from apd_replay.report.timelines import Panel, Strip

PATHS = {"direct": svg.BLUE, "fallback": svg.ORANGE, "seed": svg.PURPLE, "dp": svg.GREEN}
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
MOST_SESSIONS = 60
MOST_ROWS = 400
STEPS = 300


def of_run(source: Source, run: Row) -> list[Figure]:
    """The pictures of one run; those without data are left out."""
    found = [session_map(source, run)]
    if not dp(run):
        found += [pools(source, run), links(source, run), waits(source, run)]
    return [f for f in found if f is not None]


def dp(run: Row) -> bool:
    """Unified workers: no D, no link."""
    return str(run["policy"]) == "cache_aware" or bool(re.fullmatch(r"\d+dp", run["cluster"] or ""))


def session_map(source: Source, run: Row) -> Figure | None:
    key = _key(run)
    sessions = source.query("sessions", **key)
    if not sessions:
        return None
    turns = defaultdict(list)
    for turn in source.query("session_turns", **key):
        turns[turn["session"]].append(turn)
    step = max(1.0, len(sessions) / MOST_SESSIONS)
    shown = [sessions[int(k * step)] for k in range(min(len(sessions), MOST_SESSIONS))]
    strips, unified = [], dp(run)
    for s in shown:
        spans = [(t["dispatched_t"], t["finished_t"] or t["dispatched_t"], t["path"]) for t in turns[s["session"]]]
        marks = [(t["finished_t"] or t["dispatched_t"], "error") for t in turns[s["session"]] if t["status"] == "error"]
        strips.append(
            Strip(s["session"], spans, marks, "" if unified else MISSING if s["direct_rate"] is None else f"{100 * s['direct_rate']:.0f} %")
        )
    paths = {p: c for p, c in PATHS.items() if any(s[p] for s in sessions)}
    title = "Session map: every turn by the path that served it"
    part = f"{len(sessions):,} sessions" if len(shown) == len(sessions) else f"{len(shown)} of {len(sessions):,} sessions, evenly by rank"
    picture = timelines.strips(
        _heading(title, run, part),
        strips,
        paths,
        {"error": ("currentColor", 1.6)} if any(s["errors"] for s in sessions) else {},
        "seconds since the run's start",
        note_title="" if unified else "direct",
    )
    columns = (
        "session",
        "turns",
        "peak_input",
        "direct_rate",
        "direct",
        "fallback",
        "seed",
        "dp",
        "errors",
        "truncated",
        "decode_workers",
        "first_due_t",
        "last_answer_t",
    )
    return _figure(
        run,
        "session-map",
        title,
        "The largest sessions stand on top; a span lasts from dispatch to the last token.",
        picture,
        _table(f"The {len(sessions):,} sessions", columns, sessions, run["engine"]),
        _query("session_turns", run),
    )


def pools(source: Source, run: Row) -> Figure | None:
    key = _key(run)
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
    picture = timelines.usage(_heading(title, run), panels, POOL_EVENTS, "seconds since the run's start")
    kinds = list(POOL_EVENTS)
    table = Table(
        "Each D", ("worker", "peak usage", *(f"{k}s" for k in kinds), *(f"first {k}, s" for k in kinds)), rows, engine=run["engine"]
    )
    return _figure(
        run,
        "pools",
        title,
        "Line: highest usage in a step of time; band: lowest to highest. Rails below: one tick an event, their number on the right.",
        picture,
        table,
        _query("pool_events", run),
    )


def links(source: Source, run: Row) -> Figure | None:
    transfers = source.query("links", **_key(run))
    by_link: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for r in transfers:
        by_link[r["prefill_worker"], r["decode_worker"]].append(r)
    if not by_link:
        return None
    summary = {(r["prefill_worker"], r["decode_worker"]): r for r in source.query("link_summary", **_key(run))}
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
        _heading(title, run, f"{len(by_link)} links, {len(transfers):,} transfers"),
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
    return _figure(
        run,
        "links",
        title,
        "One tick a transfer, when it ended. Shaded: from the link's first real failure to its recovery, or to its last transfer where it never recovered.",
        picture,
        Table("Each link", columns, rows, engine=run["engine"]),
        _query("links", run),
    )


def waits(source: Source, run: Row) -> Figure | None:
    found = source.query("waits", **_key(run))
    if not found:
        return None
    title = "How long failed requests had waited"
    n = sum(r["n"] for r in found)
    names = {r["error_kind"]: r for r in found}
    picture = charts.ecdf(
        _heading(title, run, f"{n:,} failed requests"),
        {k: r["curve"] for k, r in names.items()},
        "seconds from dispatch to the failure (log scale)",
        counts={k: r["n"] for k, r in names.items()},
    )
    rows = [[k, r["n"], *(r["curve"][q] for q in (0, 50, 90, 99, 100))] for k, r in names.items()]
    return _figure(
        run,
        "waits",
        title,
        "A rejection fails at once; a timeout waits its limit.",
        picture,
        Table("Waits, seconds", ("error kind", "n", "least", "P50", "P90", "P99", "most"), rows, engine=run["engine"]),
        _query("waits", run),
    )


def gaps(source: Source, runs: Sequence[Row]) -> Figure | None:
    """The trace's gaps against those of one run for each time-scale; `runs` share engine and trace."""
    trace = source.query("trace_gaps", trace=runs[0]["trace"])
    curves: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    if trace and trace[0]["n"]:
        curves["trace"], counts["trace"] = trace[0]["curve"], trace[0]["n"]
    scales = set()
    for run in runs:
        if run["time_scale"] in scales or len(curves) > 4:
            continue
        found = source.query("replay_gaps", **_key(run))
        if found and found[0]["n"]:
            scales.add(run["time_scale"])
            name = f"{run['experiment']}, S = {number(run['time_scale'])}"
            curves[name], counts[name] = found[0]["curve"], found[0]["n"]
    if not scales:
        return None
    title = "Gaps between turns: the trace and its replays"
    heading = Heading(title, f"engine {runs[0]['engine']} · trace {runs[0]['trace']} · one run for each time-scale S")
    rows = [[k, counts[k], *(curve[q] for q in (20, 100, 180, 198, 200))] for k, curve in curves.items()]
    note = "Replay: due time less the previous turn's end, so queueing is not in it."
    return _figure(
        runs[0],
        "gaps",
        title,
        note,
        charts.ecdf(heading, curves, "seconds (log scale)", counts=counts),
        Table("Gaps, seconds", ("of", "n", "P10", "P50", "P90", "P99", "most"), rows, engine=runs[0]["engine"]),
    )


def session_sizes(source: Source, run: Row) -> Figure | None:
    """Direct-to-D rate over the session's largest prompt, all replicates of the run's experiment."""
    found = source.query("session_rates", experiment=run["experiment"])
    if not found:
        return None
    title = "Direct-to-D rate of each session, by its largest prompt"
    n = max(r["replicates"] for r in found)
    heading = Heading(title, f"{run['experiment']} · engine {run['engine']} · trace {run['trace']} · {len(found):,} sessions, N = {n}")
    points = [(float(r["peak_input"]), r["mean_rate"], r["lowest"], r["highest"]) for r in found]
    picture = charts.scatter(heading, points, "largest prompt of the session, tokens", "direct-to-D rate")
    columns = ("session", "peak_input", "replicates", "mean_rate", "lowest", "highest")
    return _figure(
        run,
        "sizes",
        title,
        "Dot: mean over replicates; line: lowest to highest.",
        picture,
        _table(f"{len(found):,} sessions", columns, found, run["engine"]),
        _query("session_rates", run),
    )


def log_lines(source: Source, run: Row) -> Table | None:
    """Which log lines stand behind a run's figures, with links to the files."""
    found = source.query("log_lines", **_key(run))
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


def store_href(run: Row, file: str) -> str:
    """Where a file of a stored run lies, from results/report/."""
    from urllib.parse import quote

    return quote(f"../store/{run['run_id']}/{file}")


def _key(run: Row) -> dict[str, Any]:
    return {"experiment": run["experiment"], "replicate": run["replicate"]}


def _heading(title: str, run: Row, *more: str) -> Heading:
    return Heading(
        title,
        " · ".join(
            [run["experiment"], f"replicate {run['replicate']} (one run)", f"engine {run['engine']}", f"trace {run['trace']}", *more]
        ),
    )


def _figure(run: Row, name: str, title: str, note: str, picture: str, table: Table, query: str = "") -> Figure:
    return Figure(stem(name, run["experiment"], run["engine"], run["trace"] or ""), run["engine"], title, note, picture, table, query)


def _table(caption: str, columns: Sequence[str], rows: Sequence[Row], engine: str) -> Table:
    shown = rows[:MOST_ROWS]
    more = "" if len(shown) == len(rows) else f"; the first {len(shown):,} are shown, the query below gives all"
    return Table(caption + more, columns, [[r[c] for c in columns] for r in shown], engine=engine)


def _query(name: str, run: Row) -> str:
    """The query with its parameters filled in, to be given to `apd sql`."""
    text = query_text(name)
    quoted = "'" + plain(run["experiment"]).replace("'", "''") + "'"
    return text.replace("$experiment", quoted).replace("$replicate", json.dumps(run["replicate"])).strip()
