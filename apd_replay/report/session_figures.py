"""Figures of sessions: the map of their turns, their direct-to-D rate by size, the gaps between turns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from apd_replay.report import charts, svg, timelines
from apd_replay.report.charts import Heading
from apd_replay.report.model import Figure, Table
from apd_replay.report.numbers import MISSING, number
from apd_replay.report.single_run import run_figure, run_heading, run_key, run_query, run_table
from apd_replay.report.source import Row, Source
from apd_replay.report.timelines import Strip

PATHS = {"direct": svg.BLUE, "fallback": svg.ORANGE, "seed": svg.PURPLE, "dp": svg.GREEN}
MOST_SESSIONS = 60


def session_map(source: Source, run: Row) -> Figure | None:
    key = run_key(run)
    sessions = source.query("sessions", **key)
    if not sessions:
        return None
    turns = defaultdict(list)
    for turn in source.query("session_turns", **key):
        turns[turn["session"]].append(turn)
    step = max(1.0, len(sessions) / MOST_SESSIONS)
    shown = [sessions[int(k * step)] for k in range(min(len(sessions), MOST_SESSIONS))]
    strips, unified = [], not run["disaggregated"]
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
        run_heading(title, run, part),
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
    return run_figure(
        run,
        "session-map",
        title,
        "The largest sessions stand on top; a span lasts from dispatch to the last token.",
        picture,
        run_table(f"The {len(sessions):,} sessions", columns, sessions, run["engine"]),
        run_query("session_turns", run),
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
    return run_figure(
        run,
        "sizes",
        title,
        "Dot: mean over replicates; line: lowest to highest.",
        picture,
        run_table(f"{len(found):,} sessions", columns, found, run["engine"]),
        run_query("session_rates", run),
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
        found = source.query("replay_gaps", **run_key(run))
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
    return run_figure(
        runs[0],
        "gaps",
        title,
        note,
        charts.ecdf(heading, curves, "seconds (log scale)", counts=counts),
        Table("Gaps, seconds", ("of", "n", "P10", "P50", "P90", "P99", "most"), rows, engine=runs[0]["engine"]),
    )
