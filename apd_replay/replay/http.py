"""The HTTP driver of the replay core: real time, one event loop, workers behind SGLang's HTTP API (real or emulated).

Times are absolute: every turn is due at a moment of one clock that starts with the run, so that delays never add up. The next
prompt is built while its turn still waits, and what is left to do when it is due is one write.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from apd_replay.replay import admission
from apd_replay.replay.client import Address, Client
from apd_replay.replay.core import (
    AskAdmission,
    CloseSession,
    Command,
    Journal,
    Outcome,
    ReplayCore,
    Request,
    Send,
    State,
    WaitUntil,
)
from apd_replay.replay.failures import Failure, of_pair
from apd_replay.replay.generate import DIRECT, Answer, body, generate
from apd_replay.replay.health import ClientHealth
from apd_replay.replay.prompts import Prompts

BUILD_AHEAD_S = 1.0  # how long before its time a prompt is built: early enough to be ready, late enough to hold few of them
PEER_WORD_S = 3.0  # after one of P and D said that it failed: how long the other may take to say why
CLOSE_LIMIT_S = 5.0  # a D that hangs must not keep the run open
KEPT_TOKENS_SLACK = 64  # a page, at most, of a session's history may be computed again before its slot counts as lost


@dataclass(frozen=True, slots=True)
class PrefillTarget:
    address: Address
    bootstrap_host: str
    bootstrap_port: int


@dataclass(frozen=True, slots=True)
class Targets:
    """`decode`: the D's, or the unified workers. `router`: where it is given, it alone is sent to and chooses the worker."""

    decode: tuple[Address, ...]
    prefill: tuple[PrefillTarget, ...] = ()
    router: Address | None = None

    @property
    def choices(self) -> int:
        """Between how many decode (or unified) workers the replay itself chooses."""
        return 1 if self.router else len(self.decode)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    request_timeout_s: float
    output_reserve_tokens: int
    time_limit_s: float | None = None
    temperature: float = 0.0


class ServedBy:
    """A journal behind a router: the worker that served a request is the server's own word; unknown, it is null, never a guess."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.worker: dict[str, int] = {}
        self.admission, self.pause, self.binding = journal.admission, journal.pause, journal.binding

    def request(self, request: Request) -> None:
        request.decode = self.worker.pop(request.id, -1)
        self._journal.request(request)


class HttpDriver:
    """Drives `core` once: `await run()`. `lateness` is a file for one line a request, how late it left (None: not written)."""

    def __init__(self, core: ReplayCore, targets: Targets, prompts: Prompts, settings: HttpSettings, *, served_by: ServedBy | None = None,
                 lateness: Path | None = None) -> None:
        self.core, self.targets, self.settings = core, targets, settings
        self.health = ClientHealth()
        self._prompts, self._served_by = prompts, served_by
        self._lateness_file = lateness
        self._lateness: IO[str] | None = None
        self._ready: dict[str, bytes] = {}
        self._late: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> dict[str, Any]:
        """Until every turn has ended, or the time limit. Returns the client's health. Raises RunError where the run cannot go on."""
        self._loop = asyncio.get_running_loop()
        self._client = Client()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._t0 = self._loop.time()
        self.health.watch()
        with self._lateness_file.open("w", encoding="utf-8") if self._lateness_file else nullcontext() as self._lateness:
            try:
                self._do(self.core.start())
                if self.settings.time_limit_s is not None:
                    self._loop.call_at(self._t0 + self.settings.time_limit_s, self._cut)
                self._check_done()
                await self._done
            finally:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                self._client.close()
                health = self.health.stop()
        return health

    def now(self) -> float:
        """Seconds since the run's start."""
        return self._loop.time() - self._t0

    # commands ---------------------------------------------------------------------------------------------------------

    def _do(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case WaitUntil(t, request):
                    due = max(t, self.now())
                    if request.state is State.PLANNED:
                        self._loop.call_at(self._t0 + due - BUILD_AHEAD_S, self._prepare, request, due)
                    else:
                        self._loop.call_at(self._t0 + due, self._wake, request, due)
                case Send(request):
                    self._start(self._serve(request, self.now()))
                case AskAdmission(request):
                    self._start(self._ask(request))
                case CloseSession(session, worker):
                    self._start(self._close(session, worker))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or self._done.done():
            return
        if (error := task.exception()) is not None:
            self._done.set_exception(error)
        else:
            self._check_done()

    def _check_done(self) -> None:
        """The last answer ends the run, once the calls that close its session are out."""
        if self.core.done and not self._tasks and not self._done.done():
            self._done.set_result(None)

    def _prepare(self, request: Request, due: float) -> None:
        """The prompt of a turn that waits; then its time."""
        self._build(request)
        if due <= self.now():
            self._wake(request, due)
        else:
            self._loop.call_at(self._t0 + due, self._wake, request, due)

    def _wake(self, request: Request, due: float) -> None:
        if self._done.done():
            return
        now = self.now()
        self._late[request.id] = now - due
        self._do(self.core.wake(now, request))

    def _cut(self) -> None:
        if not self._done.done():
            self.core.cut(self.now())
            self._done.set_result(None)

    # a turn -----------------------------------------------------------------------------------------------------------

    def _build(self, request: Request) -> None:
        if request.id not in self._ready and request.state is not State.ENDED:
            self._ready[request.id] = self._prompts.build(request)

    async def _ask(self, request: Request) -> None:
        to = self.targets.decode[request.decode]
        answer = None
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.request_timeout_s):
                answer = await admission.ask(self._client, to, request, self.settings.output_reserve_tokens)
        self._late[request.id] = 0.0  # what follows is measured from the answer
        self._do(self.core.admission_answered(self.now(), request, answer))

    async def _close(self, session: str, worker: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await admission.close(self._client, self.targets.decode[worker], session)

    async def _serve(self, request: Request, decided_t: float) -> None:
        self._build(request)
        prompt = self._ready.pop(request.id)
        pieces = body(prompt, request.asked_output_tokens, request.id, self.settings.temperature, self._bootstrap(request))
        sent = False

        def on_sent() -> None:
            nonlocal sent
            if not sent:
                sent = True
                request.dispatched_t = self.now()
                late = self._late.pop(request.id, 0.0) + request.dispatched_t - decided_t
                self.health.lateness_s.append(late)
                if self._lateness is not None:
                    self._lateness.write(json.dumps({"request_id": request.id, "lateness_s": round(late, 6)}) + "\n")

        try:
            async with asyncio.timeout(self.settings.request_timeout_s):
                result = await self._exchange(request, pieces, on_sent)
        except TimeoutError:
            result = Failure("client_timeout", f"no answer within {self.settings.request_timeout_s:g} s", self.now())
        result = _checked(request, result, self.now())
        self._prompts.answered(request, prompt, result.output if isinstance(result, Answer) else None)
        if isinstance(result, Answer):
            commands = self.core.finished(self.now(), request, self._outcome(request, result))
        else:
            failed_t = max(result.t, request.dispatched_t or 0.0)  # D may be found gone before P has been written to
            commands = self.core.failed_with(failed_t, request, result.kind, result.message)
        if not any(isinstance(c, WaitUntil) and c.request.session == request.session for c in commands):
            self._prompts.forget(request.session)
        self._do(commands)

    def _bootstrap(self, request: Request) -> dict[str, Any]:
        named = {"routing_key": request.session} if self.core.settings.resident else {}  # tells a D's plugin whose KV it is
        if request.path == "direct":
            return {"bootstrap_host": DIRECT, **named}
        if request.prefill is None or not self.targets.prefill:
            return named
        prefill = self.targets.prefill[request.prefill]
        return {"bootstrap_host": prefill.bootstrap_host, "bootstrap_port": prefill.bootstrap_port, "bootstrap_room": request.room, **named}

    async def _exchange(self, request: Request, pieces: list[bytes], on_sent: Any) -> Answer | Failure:
        def on_first() -> None:
            self.core.first_token(self.now(), request)

        to = self.targets.router or self.targets.decode[request.decode]
        serving = generate(self._client, to, pieces, self.now, on_sent=on_sent, on_first=on_first)
        if request.prefill is None or request.path == "direct":
            return await serving
        decode = self._loop.create_task(serving)
        prefill = self._loop.create_task(generate(self._client, self.targets.prefill[request.prefill].address, pieces, self.now, on_sent=on_sent))
        try:
            await asyncio.wait((decode, prefill), return_when=asyncio.FIRST_COMPLETED)
            if not decode.done() and (isinstance(prefill.result(), Answer) or request.first_token_t is not None):
                await asyncio.wait((decode,))
            known = [side.result() for side in (decode, prefill) if side.done()]
            if any(isinstance(a, Failure) and a.kind != "connection" for a in known):  # of a server that is gone nobody knows more
                await asyncio.wait((decode, prefill), timeout=PEER_WORD_S)
            answers = [side.result() if side.done() else None for side in (decode, prefill)]
        finally:
            decode.cancel()
            prefill.cancel()
        if isinstance(answers[0], Answer):
            return answers[0]
        return of_pair(*(a if isinstance(a, Failure) else None for a in answers))

    def _outcome(self, request: Request, answer: Answer) -> Outcome:
        if self._served_by is not None and answer.served_by is not None:
            name, _, number = answer.served_by.rpartition("-")
            if name == "worker" and number.isdigit():
                self._served_by.worker[request.id] = int(number)
        lost = None
        if request.path == "direct" and answer.cached_tokens is not None:
            again = request.history_tokens - answer.cached_tokens
            lost = again > min(KEPT_TOKENS_SLACK, max(request.history_tokens - 1, 0))
        return Outcome(answer.completion_tokens, answer.cached_tokens, answer.finish_reason, answer.retractions, lost)


def _checked(request: Request, result: Answer | Failure, now: float) -> Answer | Failure:
    """An answer of another length than asked, or to a prompt of another length than sent, is no answer to this request."""
    if isinstance(result, Failure):
        return result
    if result.completion_tokens != request.asked_output_tokens:
        return Failure("protocol", f"asked for {request.asked_output_tokens} tokens, received {result.completion_tokens} ({result.finish_reason})", now)
    if result.prompt_tokens is not None and result.prompt_tokens != request.input_tokens:
        return Failure("protocol", f"sent a prompt of {request.input_tokens} tokens, the server counted {result.prompt_tokens}", now)
    return result
