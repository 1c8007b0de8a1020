"""What each claim's evidence looks like: a list of drawings a claim. A claim without one gets the table of its evidence only."""

from __future__ import annotations

from apd_replay.report.drawings import Drawing, Effects, Links, Runs, Scopes
from apd_replay.report.evidence import Evidence
from apd_replay.report.model import Figure

HEADLINE = (
    "latency_mean", "latency_p50", "latency_p90", "latency_p99", "ttft_mean", "ttft_p50", "ttft_p90", "ttft_p99",
    "response_mean", "response_p50", "response_p90", "response_p99", "tpot_p50", "goodput", "throughput", "session_completion_p50",
)  # fmt: skip
GAPS = ("gap_p10", "gap_p50", "gap_p90", "gap_p99", "gap_max")
SPREAD = "Every dot is one run of the same configuration; the large dot is their mean. What lies inside this spread decides nothing."
ONE_RUN = "Every dot is one run, the large one their mean."
EACH_D, SECONDS = "decode worker", "seconds (log scale)"

# fmt: off
DRAWINGS: dict[str, tuple[Drawing, ...]] = {
    "s0": (
        Runs("errors", "Errors of runs of one configuration", ("errors",), "failed requests a run", SPREAD),
        Runs("latency", "Latency and TTFT of runs of one configuration", ("latency_p50", "latency_p90", "ttft_p50"), SECONDS, SPREAD,
             log=True, first_only=True),
    ),
    "s1": (
        Scopes("bins", "Sessions by their direct-to-D rate", ("direct_rate_bin",), "sessions",
               "Bars are means over replicates, dots the replicates. Bimodal means full end bins and an empty middle.",
               scopes="direct-to-D rate of a session's follow-up turns, %"),
        Runs("paths", "What a turn costs on each path", ("latency_mean", "ttft_mean"), "mean seconds (log scale)",
             "Mean latency and TTFT of requests that ended well, by path.", log=True, first_only=True),
    ),
    "s2": (
        Scopes("trims", "Trims of idle sessions and failed rooms on each D", ("trims", "failed_rooms"), "events a run",
               "Where failed rooms outnumber trims, a D did not free room as fast as it was asked to. Only runs with logs are in it.",
               scopes=EACH_D),
        Scopes("peaks", "Highest KV pool usage of each D", ("peak_token_usage",), "share of the pool",
               "From the D's own batch lines (two decimals).", scopes=EACH_D),
    ),
    "s3": (
        Runs("errors", "Failed rooms without and with backpressure", ("failed_rooms",), "failed rooms a run", ONE_RUN),
        Runs("waits", "How long failed requests had waited", ("wait_p50", "wait_max"), "seconds",
             "A storm of timeouts waits 30 s and more; a rejection does not wait.", reference=30.0, reference_name="30 s"),
        Effects("changes", "What backpressure changes", ("errors_change", "latency_p99_change"), "change"),
        Scopes("pauses", "Backpressure pauses for each D", ("pauses",), "pauses a run",
               "Pauses of sends, by the D that asked for them.", scopes=EACH_D),
    ),
    "s4": (
        Runs("admission", "How long an admission call takes", ("admission_latency_p50", "admission_latency_p99"), SECONDS,
             "Call to answer, by D.", log=True, first_only=True),
        Runs("step", "Decode step time", ("step_time_p50",), "median milliseconds a step",
             "Batch over throughput, from the D's own lines; every dot is one run."),
        Effects("ratio", "Decode step time with admission traffic over without", ("step_time_ratio",), "ratio (log scale)",
                reference=1.05, reference_name="1.05", log=True),
    ),
    "s5": (
        Scopes("p", "Failed rooms and rejections of each P", ("failed_rooms", "rejections"), "rooms a run",
               "The claim: one P has nearly all the failures, though both get as many requests.", scopes="prefill worker"),
        Links("links", "Failed rooms on each link, mean of the runs", ("failed_rooms",), "rooms",
              "Whole rows that fail: a P. Whole columns: a D. Single cells: links."),
    ),
    "s7": (
        Runs("gaps", "Gaps between turns, of the trace and of the replay", GAPS, SECONDS,
             "At time-scale S a faithful replay has the trace's gaps, divided by S.", log=True, first_only=True),
        Effects("headline", "KVC over DP: S = 1 against S = 10", ("headline_change",), "ratio of ratios (log scale)", reference=1.0, log=True),
        Effects("changes", "KVC's errors and direct-to-D rate: S = 1 against S = 10", ("errors_change", "direct_rate_change"), "change"),
    ),
    "s8": (
        Scopes("links", "Real send failures and instant rejections on each link", ("real_failures", "rejections"), "rooms a run",
               "The claim: a link fails once for real, is latched, and from then on rejects at once.", links=True),
        Runs("share", "Share of failures that were instant rejections", ("rejection_share",), "share", "The claim asks for 0.9.",
             reference=0.9, reference_name="0.9"),
    ),
    "s9": (
        Runs("delays", "Transfer delay beside a stall, by shard", ("shard_delay_p50",), "median seconds (log scale)",
             "Transfers of the same P to other D's while one D stalls.", log=True),
        Runs("delay", "Transfer delay of same-shard over other-shard D's during a stall", ("shard_delay_ratio",), "ratio (log scale)",
             "Above 1.5: D's of one shard wait for each other.", log=True, reference=1.5, reference_name="1.5"),
    ),
    "headline": (
        Effects("ratios", "KVC over DP", HEADLINE, "ratio KVC / DP (log scale)", reference=1.0, reference_name="equal", log=True),
        Runs("runs", "Latency, TTFT and response of every run", ("response_mean", "latency_p50", "ttft_p50"), SECONDS, ONE_RUN, log=True),
    ),
}
# fmt: on


def figures(evidence: Evidence) -> list[Figure]:
    """The claim's figures; those without evidence are left out."""
    drawn = (drawing.draw(evidence) for drawing in DRAWINGS.get(evidence.claim, ()))
    return [figure for figure in drawn if figure is not None]
