"""What a replay's job asks of a cluster: GPUs, memory, run time; and the least time it can take, from trace, scale and limits."""

from __future__ import annotations

import functools
import math
from pathlib import Path

from apd_replay.configuration import Experiment
from apd_replay.trace.model import Trace

START_S = 1200
"""For servers to load their model and to stop: a guess on the safe side."""
SIM_MINUTES, SIM_MB = 60, 2000
"""A simulated run takes seconds to minutes of CPU and some hundred MB (docs/simulator.md)."""
WORKER_MB, CLIENT_MB = 24_000, 4_000
"""Host memory of a real worker (weights pass through it) and of the client: guesses; `--set-resources replay:mem_mb=...` says otherwise."""


def gpus(experiment: Experiment) -> int:
    """GPUs of one run: those of the cluster file, none where nothing is started on a GPU."""
    cluster = experiment.cluster
    if experiment["engine"] != "sglang" or cluster["device"] != "cuda" or experiment["sglang"]["external"]:
        return 0
    return max(cluster["gpus"]) + 1 if cluster["gpus"] else _workers(experiment)


def memory_mb(experiment: Experiment) -> int:
    if experiment["engine"] == "sim":
        return SIM_MB
    own_servers = experiment["engine"] == "sglang" and not experiment["sglang"]["external"]
    return CLIENT_MB + (WORKER_MB * _workers(experiment) if own_servers else 0)


def least_s(experiment: Experiment, trace: Trace, replicate: int) -> float:
    """Seconds below which the run cannot end: gaps and start of its longest session, or the moment at which it is cut.
    What the servers take to answer is not in it. 0 for the simulator, whose time is virtual."""
    if experiment["engine"] == "sim":
        return 0.0
    from apd_replay.replay.plan import plan

    span = plan(trace, experiment, replicate).expected_span_s
    return min(span, experiment["time_limit_s"] or span)


def minutes(experiment: Experiment, least: float) -> int:
    """Run time to ask for: a run that is cut needs no reserve; another one may wait for its servers as long as for its gaps."""
    if experiment["engine"] == "sim":
        return SIM_MINUTES
    cut = experiment["time_limit_s"]
    busy = cut if cut else 2 * least + 600
    return math.ceil((START_S + busy + experiment["request_timeout_s"]) / 60)


def spoken(seconds: float) -> str:
    """`1 h 12 min`, `12 min`, `40 s`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest} min" if hours else f"{rest} min"


@functools.cache
def read_trace(source: str, form: str | None, config: Path) -> Trace:
    from apd_replay.trace.load import load

    return load(source, form, config)


def _workers(experiment: Experiment) -> int:
    cluster = experiment.cluster
    return int(cluster["prefill"] + cluster["decode"] + cluster["workers"])
