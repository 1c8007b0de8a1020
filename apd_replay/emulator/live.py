"""The simulated cluster while real clients wait for it: requests come in over HTTP, and what becomes of them goes out as it happens."""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import dataclass, field, replace
from math import inf

from apd_replay.emulator.answer import Answer
from apd_replay.emulator.clock import RealClock
from apd_replay.emulator.histories import Histories
from apd_replay.emulator.spec import Spec
from apd_replay.replay.core import Request
from apd_replay.sim import loglines
from apd_replay.sim.cluster import BOOTSTRAP_TIMEOUT_S, Cluster
from apd_replay.sim.job import Job, Stage
from apd_replay.sim.prefixes import SharedHeads

STREAM_S = 0.05  # between two events of a running answer, which carry the tokens of all steps since; first and last are sent at once
FLUSH_S = 0.5  # worker logs reach their files so often

_STATUS = {"http_4xx": 400}  # of a failure; every other kind is a 500


@dataclass(slots=True, eq=False)
class Asked(Request):
    """A request that a client waits for. `prefill_answer`: what its P says of it, where one takes part."""

    named: bool = False  # the client named the session
    prompt: array[int] = field(default_factory=lambda: array("i"))
    answer: Answer | None = None
    prefill_answer: Answer | None = None
    job: Job | None = None


@dataclass(slots=True)
class _Half:
    """One side of a room, waiting for the other."""

    request: Asked | None
    prefill_answer: Answer | None
    limit: asyncio.TimerHandle


class LiveCluster(Cluster):
    """Use inside a running event loop. Nothing here waits for a client: one that does not come back, or hangs up, is the client's loss."""

    def __init__(self, spec: Spec, started_ts: float) -> None:
        self.clock = RealClock()
        self.histories = Histories()
        self._rooms: dict[tuple[int, int], _Half] = {}
        self._streaming: dict[Job, Asked] = {}
        self._loop = asyncio.get_running_loop()
        patient = replace(spec.experiment, settings={**spec.experiment.settings, "request_timeout_s": inf})  # a client's limit is its own
        self.max_running: int = spec.experiment.hardware["max_running_requests"]
        self._resident: bool = spec.experiment["resident"]
        super().__init__(patient, spec.replicate, self.clock, self, SharedHeads(), spec.logs, started_ts)  # type: ignore[arg-type]
        self._flush()

    # requests in ------------------------------------------------------------------------------------------------------

    def serve(self, request: Asked) -> None:
        """One that needs no P, or whose P has asked too."""
        self.clock.catch_up()
        assert request.answer is not None
        for answer in (request.answer, request.prefill_answer):
            if answer is not None and not answer.done:
                answer.on_gone(lambda: self.hang_up(request))
        request.job = self.send(request)

    def join(self, room: int, prefill: int, request: Asked | None, prefill_answer: Answer | None) -> None:
        """P and D are asked for the same request; it starts once both know it. Exactly one of the last two is given."""
        key = (prefill, room)
        other = self._rooms.get(key)
        mine = request.answer if request is not None else prefill_answer
        assert mine is not None
        if other is None:
            limit = self._loop.call_later(BOOTSTRAP_TIMEOUT_S, self._nobody_came, key)
            self._rooms[key] = _Half(request, prefill_answer, limit)
            mine.on_gone(lambda: self._leave(key))
            return
        if (request is None) == (other.request is None):
            mine.fail(400, f"bootstrap_room {room} is in use")
            return
        del self._rooms[key]
        other.limit.cancel()
        request = request or other.request
        assert request is not None
        request.prefill_answer = prefill_answer or other.prefill_answer
        self.serve(request)

    def _leave(self, key: tuple[int, int]) -> None:
        self._rooms.pop(key).limit.cancel()

    def _nobody_came(self, key: tuple[int, int]) -> None:
        half = self._rooms.pop(key)
        mine = half.request.answer if half.request is not None else half.prefill_answer
        assert mine is not None
        mine.fail(500, loglines.timed_out(key[1], BOOTSTRAP_TIMEOUT_S, "Bootstrapping"))

    def hang_up(self, request: Asked) -> None:
        """A client of the request has gone: the workers abort it, as SGLang does."""
        if request.job is not None and request.job.stage is not Stage.GONE:
            self.clock.catch_up()
        if request.job is not None and request.job.stage is not Stage.GONE:
            self.give_up(request.job)

    # what becomes of them ---------------------------------------------------------------------------------------------

    def transferred(self, job: Job) -> None:
        """P's part is done: it answers with the one token it made."""
        super().transferred(job)
        answer = job.request.prefill_answer  # type: ignore[attr-defined]
        if answer is not None:
            answer.cached_tokens = job.cached
            answer.finish(1)

    def first_token(self, job: Job) -> None:
        request = job.request
        assert isinstance(request, Asked) and request.answer is not None
        request.answer.cached_tokens = job.cached
        if job.output > 1:
            request.answer.progress(1)
            if not self._streaming:
                self._loop.call_later(STREAM_S, self._stream)
            self._streaming[job] = request

    def finished(self, job: Job) -> None:
        request = job.request
        assert isinstance(request, Asked) and request.answer is not None
        self._streaming.pop(job, None)
        answer = request.answer
        answer.cached_tokens, answer.retractions = job.cached, job.retractions
        answer.finish(job.output)
        self.histories.answered(request.session, request.prompt, answer.tokens)
        if self._resident and not request.named:  # nobody could come back to what the D keeps of it
            self.close(request.session, request.decode)

    def failed(self, job: Job, kind: str, message: str) -> None:
        job.stage = Stage.GONE
        request = job.request
        assert isinstance(request, Asked) and request.answer is not None
        self._streaming.pop(job, None)
        status = _STATUS.get(kind, 500)
        on_prefill = on_decode = loglines.ABORTED if kind == "client_timeout" else message
        if kind in ("kv_transfer", "peer_dead"):
            on_prefill = loglines.prefill_failed(job.rid, job.room, message)
            on_decode = loglines.decode_failed(job.rid, job.room, loglines.PREFILL_GAVE_UP)
        request.answer.fail(status, on_decode)
        if request.prefill_answer is not None:
            request.prefill_answer.fail(status, on_prefill)

    def _stream(self) -> None:
        """Tokens made since the last event go out."""
        self.clock.catch_up()
        for worker in [*self.decode, *self.unified]:
            worker.settle()
        for job, request in self._streaming.items():
            assert request.answer is not None
            batch = (self.unified or self.decode)[job.decode].batch
            request.answer.progress(job.generated + (batch.step - job.joined_step if job in batch.jobs else 0))
        if self._streaming:
            self._loop.call_later(STREAM_S, self._stream)

    # logs -------------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self.clock.catch_up()
        for worker in [*self.decode, *self.unified]:
            worker.settle()
        for log in self._logs:
            log.sync()
        self._flushing = self._loop.call_later(FLUSH_S, self._flush)

    def stop(self) -> None:
        """No more time passes; the logs are whole."""
        self._flushing.cancel()
        self.clock.catch_up()
        self.clock.stop()
        for log in self._logs:
            log.close()
