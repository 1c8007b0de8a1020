"""One simulated run: the replay core in virtual time, and the run directory it leaves (CONTRACT layout)."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apd_replay import __version__
from apd_replay.configuration import Experiment
from apd_replay.errors import RunError
from apd_replay.replay.core import (
    AskAdmission,
    CloseSession,
    Command,
    Outcome,
    PlannedSession,
    ReplayCore,
    Request,
    Send,
    Settings,
    WaitUntil,
)
from apd_replay.replay.plan import plan
from apd_replay.replay.records import RunWriter
from apd_replay.routing.policies import decode_policy, prefill_policy
from apd_replay.routing.view import ClusterView, WorkerView
from apd_replay.sim.clock import CLIENT, Clock
from apd_replay.sim.cluster import Cluster
from apd_replay.sim.prefixes import SharedHeads
from apd_replay.trace.model import Trace

STARTED_TS = 1767225600.0  # 2026-01-01 00:00:00 UTC: simulated time starts here, so that a run is the same to the byte
PROGRESS_EVERY = 50_000  # requests between two lines on stderr


class Driver:
    """Carries out the core's commands on the cluster, and tells the core what happened."""

    def __init__(self, core: ReplayCore, clock: Clock) -> None:
        self._core, self._clock = core, clock
        self.cluster: Cluster
        self.last_answer_t = 0.0
        self._answers = 0

    def carry_out(self, commands: list[Command]) -> None:
        clock, cluster = self._clock, self.cluster
        for command in commands:
            kind = type(command)
            if kind is WaitUntil:
                clock.at(command.t, self._wake, command.request, CLIENT)  # type: ignore[union-attr]
            elif kind is Send:
                cluster.send(command.request)  # type: ignore[union-attr]
            elif kind is AskAdmission:
                self._ask(command.request)  # type: ignore[union-attr]
            else:
                assert isinstance(command, CloseSession)
                cluster.close(command.session, command.worker)

    def _wake(self, request: Request) -> None:
        self.carry_out(self._core.wake(self._clock.now, request))

    def _ask(self, request: Request) -> None:
        self.cluster.ask(request, lambda answer: self.carry_out(self._core.admission_answered(self._clock.now, request, answer)))

    def _answered(self) -> None:
        self.last_answer_t = self._clock.now
        self._answers += 1
        if self._answers % PROGRESS_EVERY == 0:
            print(f"simulated {self._answers:,} requests, {self._clock.now:,.0f} s of the run", file=sys.stderr)

    def first_token(self, request: Request) -> None:
        self._core.first_token(self._clock.now, request)

    def finished(self, request: Request, outcome: Outcome) -> None:
        self._answered()
        self.carry_out(self._core.finished(self._clock.now, request, outcome))

    def failed(self, request: Request, kind: str, message: str) -> None:
        self._answered()
        self.carry_out(self._core.failed_with(self._clock.now, request, kind, message))


def run(experiment: Experiment, trace: Trace, replicate: int, out_dir: Path, after_each: Callable[[Cluster], None] | None = None) -> None:
    """Replay `trace` as `experiment` says, with the replicate's number as seed, into the directory `out_dir`.

    Deterministic to the byte. `after_each` sees the cluster after every event. Raises RunError where the run comes to a halt or its
    books do not balance, ConfigError for settings that the simulator does not have.
    """
    planned = plan(trace, experiment, replicate)
    block_tokens = next((t.block_size for s in trace.sessions for t in s.turns if t.block_size), None)
    heads = SharedHeads.of(((t.session, t.hash_ids) for s in trace.sessions for t in s.turns), block_tokens) if block_tokens else SharedHeads()
    facts = {"trace": trace.name, "trace_digest": trace.digest, "over_context": planned.over_context}
    play(experiment, planned.sessions, heads, block_tokens, replicate, out_dir, facts, after_each)


def play(experiment: Experiment, sessions: Iterable[PlannedSession], heads: SharedHeads, block_tokens: int | None, replicate: int, out_dir: Path,
         facts: dict[str, Any], after_each: Callable[[Cluster], None] | None = None) -> None:
    """`run` for sessions planned already, in the order of their starts; `facts` join run.json."""
    clock = Clock()
    with _uncollected(), RunWriter(out_dir, STARTED_TS, disaggregated=experiment.disaggregated) as writer:
        settings = Settings(concurrency=experiment["concurrency"], disaggregated=experiment.disaggregated, resident=experiment["resident"],
                            backpressure=experiment["backpressure"] != "off", come_back=experiment["backpressure"] == "drain", max_pause_s=experiment["max_pause_s"], seed=replicate)  # fmt: skip
        core = ReplayCore(sessions, settings, _view(experiment), decode_policy(experiment, block_tokens), prefill_policy(experiment), writer)
        driver = Driver(core, clock)
        cluster = driver.cluster = Cluster(experiment, replicate, clock, driver, heads, out_dir / "logs" if experiment["rows"] == "all" else None, STARTED_TS)
        for worker in core.view.decode:
            worker.pool_tokens = cluster.pool_tokens
        with cluster, LoadSnapshots(experiment, out_dir, clock, cluster, core):
            driver.carry_out(core.start())
            limit = experiment["time_limit_s"]
            cut = _let_time_pass(clock, core, limit if limit is not None else float("inf"),
                                 None if after_each is None else lambda: after_each(cluster))
        if cut:
            core.cut(clock.now)
        core.check_books()
        writer.finish(_manifest(experiment, replicate, core, writer, cluster, clock.now if cut else driver.last_answer_t, facts))


@contextmanager
def _uncollected() -> Iterator[None]:
    """A run makes many objects and no cycles among them (its memory stays flat over a million requests): searching for some costs 7 %."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _view(experiment: Experiment) -> ClusterView:
    shape = experiment.cluster
    name, count = ("decode", shape["decode"]) if experiment.disaggregated else ("worker", shape["workers"])
    return ClusterView([WorkerView(f"{name}-{i}") for i in range(count)], [WorkerView(f"prefill-{i}") for i in range(shape["prefill"])])


def _let_time_pass(clock: Clock, core: ReplayCore, limit: float, after_each: Callable[[], None] | None) -> bool:
    """Until all turns have ended, or to `limit`; True: the run was cut there."""
    more = clock.run(limit, after_each)
    if not core.done and not more:
        raise RunError(f"the simulated run came to a halt at {clock.now:.1f} s with turns under way and nothing due; this is a fault of the simulator")
    return not core.done


class LoadSnapshots:
    """Load snapshots at the interval that the experiment asks for, into loads.jsonl. Reading them costs the workers nothing."""

    def __init__(self, experiment: Experiment, out_dir: Path, clock: Clock, cluster: Cluster, core: ReplayCore) -> None:
        self._every = experiment["loads_every_s"]
        self._file = open(out_dir / "loads.jsonl", "w", encoding="utf-8") if self._every else None  # noqa: SIM115
        self._clock, self._cluster, self._core = clock, cluster, core

    def __enter__(self) -> None:
        if self._file is not None:
            self._clock.at(0.0, self._take)

    def _take(self, _: None) -> None:
        t = self._clock.now
        for worker, row in self._cluster.snapshots():
            self._file.write(json.dumps({"worker": worker, "t": round(t, 6), "ts": round(STARTED_TS + t, 6), **row}) + "\n")  # type: ignore[union-attr]
        if not self._core.done:
            self._clock.at(t + self._every, self._take)

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


def _manifest(experiment: Experiment, replicate: int, core: ReplayCore, writer: RunWriter, cluster: Cluster, duration_s: float,
              facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "experiment": experiment.id, "replicate": replicate, "engine": "sim", "status": "truncated" if core.truncated else "complete",
        "cluster": experiment["cluster"], "hardware": experiment["hardware"], "policy": experiment["policy"], "time_scale": experiment["time_scale"],
        "concurrency": experiment["concurrency"], "seed": replicate, "model": experiment.cluster["model"], "started_ts": STARTED_TS,
        "duration_s": round(duration_s, 6), "requests": writer.rows, "errors": writer.errors, "planned": core.planned,
        "peak_inflight": core.peak_inflight, "workers": cluster.describe(),
        "versions": {"apd_replay": __version__}, "config": experiment.record(), **facts,
    }  # fmt: skip
