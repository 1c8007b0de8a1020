"""The simulated cluster: workers, the links between them, and the way of a request through them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any, Protocol

from apd_replay.configuration import Experiment
from apd_replay.replay import hints
from apd_replay.replay.core import Outcome, Request
from apd_replay.sim import loglines
from apd_replay.sim.clock import Clock, Deadlines
from apd_replay.sim.cost import Cost
from apd_replay.sim.decode import Answered, DecodeWorker, Design
from apd_replay.sim.job import Job, Stage
from apd_replay.sim.link import Link, Outage, Peer
from apd_replay.sim.loglines import WorkerLog
from apd_replay.sim.noise import Noise
from apd_replay.sim.prefill import PrefillWorker
from apd_replay.sim.prefixes import SharedHeads
from apd_replay.sim.unified import UnifiedWorker

BOOTSTRAP_TIMEOUT_S = 300.0  # SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT, on P
WAITING_TIMEOUT_S = 300.0  # SGLANG_DISAGGREGATION_WAITING_TIMEOUT, on D


class Listener(Protocol):
    """Who sent the requests."""

    def first_token(self, request: Request) -> None: ...

    def finished(self, request: Request, outcome: Outcome) -> None: ...

    def failed(self, request: Request, kind: str, message: str) -> None: ...


class Cluster:
    """`logs` None keeps no worker logs. Takes requests in (`send`, `ask`, `close`) and tells the listener what became of them."""

    def __init__(self, experiment: Experiment, seed: int, clock: Clock, listener: Listener, heads: SharedHeads, logs: Path | None,
                 started_ts: float) -> None:
        self._clock, self._listener = clock, listener
        shape, switches = experiment.cluster, experiment["mechanisms"]
        self._cost = Cost(experiment.hardware, shape["transfer_backend"])
        self._noise = Noise(seed, experiment.hardware.get("noise_sigma", 0.0) if switches["service_noise"] else 0.0)
        self.pool_tokens: int = shape["kv_pool_tokens"] or experiment.hardware["kv_pool_tokens"]
        self._log_folder, self._started_ts = logs, started_ts
        self._logs: list[WorkerLog] = []
        self.peers = [Peer.of(d) for d in range(shape["decode"])]
        self.prefill: list[PrefillWorker] = []
        self.decode: list[DecodeWorker] = []
        self.unified: list[UnifiedWorker] = []
        retraction = switches["retraction"]
        if experiment.disaggregated:
            self._build_disaggregated(experiment, heads, retraction)
        else:
            for i in range(shape["workers"]):
                self.unified.append(UnifiedWorker(clock, self._cost, self._open_log(f"worker-{i}"), self, self.pool_tokens, retraction=retraction, heads=heads))
        self._start_up(experiment)
        self._caching: list[PrefillWorker | UnifiedWorker] = [*self.prefill, *self.unified]
        timeout = experiment["request_timeout_s"]
        self._client_timeout_s = timeout
        self._client_limit = Deadlines(clock, timeout, lambda job, since: job.stage is not Stage.GONE, self.give_up)
        self._bootstrap_limit = Deadlines(clock, BOOTSTRAP_TIMEOUT_S, lambda job, since: job.stage is Stage.PREALLOC, self._bootstrap_timed_out)
        self._waiting_limit = Deadlines(clock, WAITING_TIMEOUT_S, lambda job, since: job.stage is Stage.TRANSFER, self._waiting_timed_out)

    def _build_disaggregated(self, experiment: Experiment, heads: SharedHeads, retraction: bool) -> None:
        shape, switches, clock, cost = experiment.cluster, experiment["mechanisms"], self._clock, self._cost
        nixl = shape["transfer_backend"] == "nixl"
        outages = [Outage(o["decode"], o["from_s"], o["until_s"]) for o in experiment["link_outages"]]
        for i in range(shape["prefill"]):
            link = Link(cost, self.peers, outages, latch=switches["latch"] and not nixl, probe=switches["probe"],
                        limit=switches["transfer_timeout"] and not nixl, head_of_line=switches["head_of_line"])  # fmt: skip
            self.prefill.append(PrefillWorker(clock, cost, self._open_log(f"prefill-{i}"), self, link, self.peers, experiment.hardware["kv_pool_tokens"],
                                              heads, nixl=nixl, alive=lambda job: job.stage is Stage.TRANSFER))  # fmt: skip
        design = Design(experiment["resident"], experiment["admission"], experiment["eviction"], switches["admission_cost"], experiment["output_reserve_tokens"],
                        hints.formula(experiment["backpressure"], experiment["overshoot_per_usage"]))  # fmt: skip
        for i in range(shape["decode"]):
            self.decode.append(DecodeWorker(clock, cost, self._open_log(f"decode-{i}"), self, self.pool_tokens, retraction=retraction, design=design,
                                            bootstrapped=self._bootstrapped))  # fmt: skip

    def _open_log(self, worker: str) -> WorkerLog:
        log = WorkerLog(self._log_folder / f"{worker}.log" if self._log_folder else None, self._started_ts)
        self._logs.append(log)
        return log

    def _start_up(self, experiment: Experiment) -> None:
        for mode, workers in (("prefill", self.prefill), ("decode", self.decode), ("null", self.unified)):
            for worker in workers:
                loglines.start_up(worker.log, mode, worker.pool, self._cost.chunk_tokens, self._cost.max_running,
                                  experiment.cluster["context_tokens"], experiment.cluster["model"])  # fmt: skip

    # requests in ------------------------------------------------------------------------------------------------------

    def send(self, request: Request) -> Job:
        job = Job(request, self._noise.factor(request.session, request.turn))
        if request.turn:
            for worker in self._caching:
                worker.limit(request.session, request.history_tokens)
        if self._client_timeout_s < inf:
            self._client_limit.start(job)
        if self.unified:
            self.unified[job.decode].submit(job)
        elif request.path == "direct":
            self.decode[job.decode].append(job)
        else:
            assert job.prefill is not None
            self.prefill[job.prefill].bootstrapping += 1
            self.decode[job.decode].arrive(job)
            if job.stage is Stage.PREALLOC:
                self._bootstrap_limit.start(job)
            elif job.stage is Stage.GONE:
                self.prefill[job.prefill].bootstrapping -= 1
        return job

    def ask(self, request: Request, answered: Answered) -> None:
        self.decode[request.decode].ask(request, answered)

    def close(self, session: str, worker: int) -> None:
        self.decode[worker].close(session)

    # on the way -------------------------------------------------------------------------------------------------------

    def _bootstrapped(self, job: Job, t: float) -> None:
        """D has made room for the job by `t`."""
        assert job.prefill is not None
        self._waiting_limit.start(job)
        self._clock.at(t + self._cost.handshake_s, self.prefill[job.prefill].ready, job)

    def transferred(self, job: Job) -> None:
        self.decode[job.decode].transferred(job)

    def transfer_failed(self, job: Job, kind: str, reason: str) -> None:
        worker = self.decode[job.decode]
        worker.drop(job)
        worker.log.write(self._clock.now, loglines.decode_failed(job.rid, job.room, loglines.PREFILL_GAVE_UP))
        self.failed(job, kind, reason)

    def _bootstrap_timed_out(self, job: Job) -> None:
        assert job.prefill is not None
        reason = loglines.timed_out(job.room, BOOTSTRAP_TIMEOUT_S, "Bootstrapping")
        prefill = self.prefill[job.prefill]
        prefill.bootstrapping -= 1
        prefill.log.write(self._clock.now, loglines.bootstrap_failed(job.rid, job.room, reason))
        self.decode[job.decode].drop(job)
        self.failed(job, "bootstrap_timeout", reason)

    def _waiting_timed_out(self, job: Job) -> None:
        reason = loglines.timed_out(job.room, WAITING_TIMEOUT_S, "WaitingForInput")
        worker = self.decode[job.decode]
        worker.drop(job)
        worker.log.write(self._clock.now, loglines.decode_failed(job.rid, job.room, reason))
        self.failed(job, "waiting_timeout", reason)

    def give_up(self, job: Job) -> None:
        """The client hangs up, and the workers abort what they had of the request."""
        now = self._clock.now
        if self.unified:
            self.unified[job.decode].drop(job)
        else:
            worker, stage = self.decode[job.decode], job.stage
            if job.prefill is not None and stage is Stage.PREALLOC:
                prefill = self.prefill[job.prefill]
                prefill.bootstrapping -= 1
                prefill.log.write(now, loglines.bootstrap_failed(job.rid, job.room, loglines.ABORTED))
            worker.drop(job)
            if stage is Stage.PREALLOC:
                worker.log.write(now, loglines.handshake_failed(job.rid, job.room, loglines.ABORTED))
            elif stage is Stage.TRANSFER:
                worker.log.write(now, loglines.decode_failed(job.rid, job.room, loglines.ABORTED))
        self.failed(job, "client_timeout", f"no answer within {self._client_timeout_s:g} s")

    # what became of them ----------------------------------------------------------------------------------------------

    def first_token(self, job: Job) -> None:
        self._listener.first_token(job.request)

    def finished(self, job: Job) -> None:
        self._listener.finished(job.request, Outcome(job.output, job.cached, "length", job.retractions, job.slot_lost))

    def failed(self, job: Job, kind: str, message: str) -> None:
        job.stage = Stage.GONE
        self._listener.failed(job.request, kind, message)

    # books ------------------------------------------------------------------------------------------------------------

    def check_books(self) -> None:
        """Every token of every pool is accounted for; what a property test asks after each event."""
        for worker in [*self.decode, *self.unified]:
            parts = sum(worker.parts())
            if parts != worker.used:
                raise AssertionError(f"{worker.used} tokens of the pool are used, but {parts} are accounted for")
            if worker.used > worker.pool:
                raise AssertionError(f"{worker.used} tokens used of {worker.pool}")
        for p in self.prefill:
            if p.held + p.cache.size > p.pool and p.cache.size:
                raise AssertionError(f"prefill keeps {p.cache.size} tokens beside {p.held} in use, of {p.pool}")

    def describe(self) -> dict[str, Any]:
        """The workers, as run.json states them."""
        return {**{f"prefill-{i}": {"pool_tokens": w.pool} for i, w in enumerate(self.prefill)},
                **{f"decode-{i}": {"pool_tokens": w.pool, **asdict(p), "transfer_queue": p.queue} for i, (w, p) in enumerate(zip(self.decode, self.peers, strict=True))},
                **{f"worker-{i}": {"pool_tokens": w.pool} for i, w in enumerate(self.unified)}}  # fmt: skip

    def snapshots(self) -> Iterable[tuple[str, dict[str, Any]]]:
        """(worker, its row of `loads` but for the times)."""
        for name, workers in (("decode", self.decode), ("worker", self.unified)):
            for i, w in enumerate(workers):
                w.settle()
                used = w.used - w.evictable_in_log()
                queues: dict[str, Any] = {"transfer_queue": None, "prealloc_queue": None, "retracted": None}
                if isinstance(w, DecodeWorker):
                    queues = {"transfer_queue": len(w.transfer), "prealloc_queue": len(w.prealloc), "retracted": len(w.retracted)}
                yield f"{name}-{i}", {"running": w.batch.n, "waiting": w.queued() + sum(q or 0 for q in queues.values()), "used_tokens": used, "total_tokens": w.pool,
                                      "token_usage": round(used / w.pool, 4), **queues}  # fmt: skip

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for log in self._logs:
            log.close()
