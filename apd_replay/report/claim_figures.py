"""What each claim's evidence looks like. One function a claim, from evidence rows to figures; a claim without one gets its table only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from apd_replay.report import charts, svg
from apd_replay.report.charts import Dot, Heading
from apd_replay.report.evidence import COLUMNS, Evidence, cells
from apd_replay.report.model import Figure, Table, stem
from apd_replay.report.source import Row, natural, ordered

HEADLINE = ("latency_mean", "latency_p50", "latency_p90", "latency_p99", "ttft_mean", "ttft_p50", "ttft_p90", "ttft_p99",
            "response_mean", "response_p50", "response_p90", "response_p99", "tpot_p50", "goodput", "throughput", "session_completion_p50")
SCOPE_COLORS = {"direct": svg.BLUE, "fallback": svg.ORANGE, "seed": svg.PURPLE, "dp": svg.GREEN, "replay": svg.ORANGE}


def figures(evidence: Evidence) -> list[Figure]:
    """The claim's figures; those without evidence are left out."""
    draw = _DRAW.get(evidence.claim)
    return [] if draw is None or not evidence.rows else [f for f in draw(evidence) if f is not None]


def _heading(e: Evidence, title: str, experiments: Sequence[str], ns: Sequence[int]) -> Heading:
    """`ns`: replicates behind the figure's parts; where they differ, the least and the most are said."""
    said = f"N = {min(ns)}" + (f" to {max(ns)}" if min(ns) < max(ns) else "") if ns else ""
    parts = [", ".join(experiments), f"engine {e.group.engine}", f"trace {e.group.trace}"]
    return Heading(title, " · ".join(filter(None, [*parts, said])))


def _figure(e: Evidence, name: str, title: str, note: str, picture: str, rows: Sequence[Row]) -> Figure:
    return Figure(stem(e.claim, name, e.group.engine, e.group.trace), e.group.engine, title, note, picture, Table("Numbers", COLUMNS, cells(rows), engine=e.group.engine))


def _bars(e: Evidence, name: str, title: str, metrics: Sequence[str], label: str, scope_label: str, note: str) -> Figure | None:
    """A bar for each scope and metric of one experiment: the mean, its replicates as dots. Scopes: bins, workers, or links (`P>D`)."""
    links = "link" in scope_label
    found = [r for r in e.metric(*metrics) if r["replicate"] is not None and r["scope"] is not None and (">" in r["scope"]) == links]
    if not found:
        return None
    which = ordered(r["experiment"] for r in found)[0]
    # Trims come from logs and failures from requests: only runs that have both are set side by side.
    complete = set.intersection(*({r["replicate"] for r in found if r["experiment"] == which and r["metric"] == m} for m in metrics))
    rows = [r for r in found if r["experiment"] == which and r["replicate"] in complete]
    if not rows:
        return None
    scopes = ordered(r["scope"] for r in rows)
    series = {m.replace("_", " "): [[r["value"] for r in rows if (r["metric"], r["scope"]) == (m, s)] for s in scopes] for m in metrics}
    heading = _heading(e, title, [which], [len(complete)])
    picture = charts.lying_bars(heading, scopes, series, label) if links else charts.bars(heading, scopes, series, label, scope_label)
    return _figure(e, name, title, note, picture, rows)


def _replicate_dots(e: Evidence, name: str, title: str, metrics: Sequence[str], label: str, note: str, *, log: bool = False, reference: float | None = None, reference_name: str = "", first_only: bool = False) -> Figure | None:
    """A row for each experiment, metric and scope: every replicate a dot, the mean a large one. `first_only`: of the first experiment alone."""
    rows = [r for r in e.metric(*metrics) if r["replicate"] is not None]
    if first_only and rows:
        rows = [r for r in rows if r["experiment"] == e.experiments(*metrics)[0]]
    keys = list(dict.fromkeys((r["experiment"], m, r["scope"]) for m in metrics for r in sorted(rows, key=lambda r: (natural(r["experiment"]), natural(r["scope"]))) if r["metric"] == m))
    if not keys:
        return None
    dots = []
    one_experiment, one_metric = len({k[0] for k in keys}) == 1, len(metrics) == 1
    for experiment, metric, scope in keys:
        values = e.values(metric, experiment, scope)
        known = [v for v in values if v is not None]
        label_parts = ["" if one_experiment and (scope or not one_metric) else experiment, "" if one_metric else metric.replace("_", " "), scope]
        dots.append(Dot(" · ".join(filter(None, label_parts)), sum(known) / len(known) if known else None, points=values, color=SCOPE_COLORS.get(scope or "", svg.BLUE)))
    heading = _heading(e, title, ordered(k[0] for k in keys), [len(d.points) for d in dots])
    picture = charts.dots(heading, dots, label, log=log, reference=reference, reference_name=reference_name)
    return _figure(e, name, title, note, picture, rows)


def _s0(e: Evidence) -> list[Figure | None]:
    note = "Every dot is one run of the same configuration; the large dot is their mean. What lies inside this spread decides nothing."
    return [
        _replicate_dots(e, "errors", "Errors of runs of one configuration", ["errors"], "failed requests a run", note),
        _replicate_dots(e, "latency", "Latency and TTFT of runs of one configuration", ["latency_p50", "latency_p90", "ttft_p50"], "seconds (log scale)", note, log=True, first_only=True),
    ]


def _s1(e: Evidence) -> list[Figure | None]:
    return [
        _bars(e, "bins", "Sessions by their direct-to-D rate", ["direct_rate_bin"], "sessions", "direct-to-D rate of a session's follow-up turns, %",
              "Bars are means over replicates, dots the replicates. Bimodal means full end bins and an empty middle."),
        _replicate_dots(e, "paths", "What a turn costs on each path", ["latency_mean", "ttft_mean"], "mean seconds (log scale)",
                        "Mean latency and TTFT of requests that ended well, by path.", log=True, first_only=True),
    ]


def _s2(e: Evidence) -> list[Figure | None]:
    return [
        _bars(e, "trims", "Trims of idle sessions and failed rooms on each D", ["trims", "failed_rooms"], "events a run", "decode worker",
              "Where failed rooms outnumber trims, a D did not free room as fast as it was asked to. Only runs with logs are in it."),
        _bars(e, "peaks", "Highest KV pool usage of each D", ["peak_token_usage"], "share of the pool", "decode worker", "From the D's own batch lines (two decimals)."),
    ]


def _s3(e: Evidence) -> list[Figure | None]:
    return [
        _replicate_dots(e, "errors", "Failed rooms without and with backpressure", ["failed_rooms"], "failed rooms a run", "Every dot is one run."),
        _replicate_dots(e, "waits", "How long failed requests had waited", ["wait_p50", "wait_max"], "seconds", "A storm of timeouts waits 30 s and more; a rejection does not wait.", reference=30.0, reference_name="30 s"),
        _over_dots(e, "changes", "What backpressure changes", ["errors_change", "latency_p99_change"], "change", 0.0, "no change"),
        _bars(e, "pauses", "Backpressure pauses for each D", ["pauses"], "pauses a run", "decode worker", "Pauses of sends, by the D that asked for them."),
    ]


def _s4(e: Evidence) -> list[Figure | None]:
    return [
        _replicate_dots(e, "admission", "How long an admission call takes", ["admission_latency_p50", "admission_latency_p99"], "seconds (log scale)", "Call to answer, by D.", log=True, first_only=True),
        _replicate_dots(e, "step", "Decode step time", ["step_time_p50"], "median milliseconds a step", "Batch over throughput, from the D's own lines; every dot is one run."),
        _over_dots(e, "ratio", "Decode step time with admission traffic over without", ["step_time_ratio"], "ratio (log scale)", 1.05, "1.05", log=True),
    ]


def _s5(e: Evidence) -> list[Figure | None]:
    found = [_bars(e, "p", "Failed rooms and rejections of each P", ["failed_rooms", "rejections"], "rooms a run", "prefill worker", "The claim: one P has nearly all the failures, though both get as many requests.")]
    links = [r for r in e.metric("failed_rooms") if r["scope"] and ">" in r["scope"] and r["replicate"] is not None]
    if links:
        experiment = ordered(r["experiment"] for r in links)[0]
        rows = [r for r in links if r["experiment"] == experiment]
        n = len({r["replicate"] for r in rows})
        pairs: dict[tuple[str, str], float] = {}
        for r in rows:
            p, _, d = r["scope"].partition(">")
            pairs[p, d] = pairs.get((p, d), 0.0) + (r["value"] or 0.0) / n
        picture = charts.matrix(_heading(e, "Failed rooms on each link, mean of the runs", [experiment], [n]), ordered(p for p, _ in pairs), ordered(d for _, d in pairs), pairs, "from P", "to D")
        found.append(_figure(e, "links", "Failed rooms on each link", "Whole rows that fail: a P. Whole columns: a D. Single cells: links.", picture, rows))
    return found


def _s7(e: Evidence) -> list[Figure | None]:
    metrics = [m for m in ("gap_p10", "gap_p50", "gap_p90", "gap_p99", "gap_max") if e.metric(m)]
    return [
        _replicate_dots(e, "gaps", "Gaps between turns, of the trace and of the replay", metrics, "seconds (log scale)", "At time-scale S a faithful replay has the trace's gaps, divided by S.", log=True, first_only=True) if metrics else None,
        _over_dots(e, "headline", "KVC over DP: S = 1 against S = 10", ["headline_change"], "ratio of ratios (log scale)", 1.0, "no change", log=True),
        _over_dots(e, "changes", "KVC's errors and direct-to-D rate: S = 1 against S = 10", ["errors_change", "direct_rate_change"], "change", 0.0, "no change"),
    ]


def _s8(e: Evidence) -> list[Figure | None]:
    return [
        _bars(e, "links", "Real send failures and instant rejections on each link", ["real_failures", "rejections"], "rooms a run", "link",
              "The claim: a link fails once for real, is latched, and from then on rejects at once."),
        _replicate_dots(e, "share", "Share of failures that were instant rejections", ["rejection_share"], "share", "The claim asks for 0.9.", reference=0.9, reference_name="0.9"),
    ]


def _s9(e: Evidence) -> list[Figure | None]:
    return [_replicate_dots(e, "delays", "Transfer delay beside a stall, by shard", ["shard_delay_p50"], "median seconds (log scale)", "Transfers of the same P to other D's while one D stalls.", log=True),
            _replicate_dots(e, "delay", "Transfer delay of same-shard over other-shard D's during a stall", ["shard_delay_ratio"], "ratio (log scale)",
                            "Above 1.5: D's of one shard wait for each other.", log=True, reference=1.5, reference_name="1.5")]


def _over_dots(e: Evidence, name: str, title: str, metrics: Sequence[str], label: str, reference: float, reference_name: str, *, log: bool = False) -> Figure | None:
    """A row for each metric over all replicates, with its interval."""
    rows = [r for m in metrics for r in e.metric(m) if r["replicate"] is None]
    if not rows:
        return None
    several = len({r["scope"] for r in rows}) > 1
    dots = [Dot(" · ".join(filter(None, (r["metric"].replace("_", " "), (r["scope"] or "") if several else ""))), r["value"], r["low"], r["high"]) for r in rows]
    ns = [r["n"] for r in rows if r["n"]]
    heading = _heading(e, title, ordered(r["experiment"] or r["scope"] or "" for r in rows), ns)
    picture = charts.dots(heading, dots, label, log=log, reference=reference, reference_name=reference_name)
    return _figure(e, name, title, "Dot: estimate; line: its interval over replicates, where there is one.", picture, rows)


def _headline(e: Evidence) -> list[Figure | None]:
    times = [m for m in ("response_mean", "latency_p50", "ttft_p50") if e.metric(m)]
    return [
        _over_dots(e, "ratios", "KVC over DP", HEADLINE, "ratio KVC / DP (log scale)", 1.0, "equal", log=True),
        _replicate_dots(e, "runs", "Latency, TTFT and response of every run", times, "seconds (log scale)", "Every dot is one run, the large one their mean.", log=True) if times else None,
    ]


_DRAW: dict[str, Callable[[Evidence], list[Figure | None]]] = {
    "s0": _s0, "s1": _s1, "s2": _s2, "s3": _s3, "s4": _s4, "s5": _s5, "s7": _s7, "s8": _s8, "s9": _s9, "headline": _headline}
