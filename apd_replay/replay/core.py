"""When a turn leaves, where it goes and what came back: decisions only.

A state machine without I/O and without a clock. A driver tells it what happened and when (events in); it answers what to do
next (commands out). The simulator drives it in virtual time, the HTTP client in real time, so that routing, admission,
backpressure, pinning and the records exist once.

    events in                        commands out
    start                            WaitUntil(t, request)     then call `wake`
    wake                             AskAdmission(request)     then call `admission_answered`
    admission_answered               Send(request)             then call `first_token`, and `finished` or `failed`
    first_token, finished, failed    CloseSession(session, worker)
    load_reported, cut

A turn's way: due -> permit (of `concurrency`; first come, first served) -> route -> admission, on a follow-up turn of a
resident design -> pause, where the D asked for one -> send. The permit is taken when the turn is ready, never while it
waits for its gap, and is given back when the answer has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import Protocol

from apd_replay.errors import RunError
from apd_replay.routing.view import ClusterView, DecodePolicy, Load, PrefillPolicy, WorkerView

SHORTEST_WAIT_S = 0.001


class State(Enum):
    PLANNED = auto()
    WAITING = auto()  # due, no permit yet
    ASKING = auto()  # admission call under way
    PAUSED = auto()
    SENT = auto()
    ENDED = auto()


@dataclass(slots=True)
class Request:
    """A turn on its way, and in the end its row in `requests` (schemas.REQUESTS has the meaning of each field)."""

    id: str
    session: str
    turn: int
    input_tokens: int
    asked_output_tokens: int
    shared_tokens: int | None
    hash_ids: tuple[int, ...] | None
    gap_s: float  # scaled and capped; 0 for a first turn
    scheduled_t: float = 0.0
    path: str = "seed"
    prefill: int | None = None
    decode: int = -1
    dispatched_t: float | None = None
    first_token_t: float | None = None
    finished_t: float | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    admission: str = "none"
    pause_ms: float = 0.0
    room: int | None = None
    status: str | None = None
    error_kind: str | None = None
    error_message: str | None = None
    finish_reason: str | None = None
    retractions: int | None = None
    slot_lost: bool | None = None
    state: State = State.PLANNED
    asked_t: float = 0.0
    history_tokens: int = 0  # previous prompt + answer, as far as this prompt repeats it


@dataclass(frozen=True, slots=True)
class PlannedSession:
    """A session as the run will send it: requests in order, the first due at `start_t`. The core takes each request out once."""

    id: str
    start_t: float
    requests: Sequence[Request]


@dataclass(frozen=True, slots=True)
class AdmissionAnswer:
    """A D's answer to: can you take this append now? `queue_depth` is its transfer queue. None: not said."""

    can_admit: bool
    reason: str = ""
    recommended_pause_ms: float = 0.0
    queue_depth: int | None = None
    available_tokens: int | None = None
    evicted_session_count: int | None = None
    token_usage: float | None = None
    retracted_queue: int | None = None
    prealloc_queue: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished answer, in the server's words."""

    output_tokens: int
    cached_tokens: int | None
    finish_reason: str = "length"
    retractions: int | None = None
    slot_lost: bool | None = None


@dataclass(slots=True)
class WaitUntil:
    t: float
    request: Request


@dataclass(slots=True)
class AskAdmission:
    request: Request


@dataclass(slots=True)
class Send:
    request: Request


@dataclass(slots=True)
class CloseSession:
    session: str
    worker: int


Command = WaitUntil | AskAdmission | Send | CloseSession


class Journal(Protocol):
    """Where the core's records go (replay/records.py writes them; a test keeps them in lists)."""

    def request(self, request: Request) -> None: ...

    def admission(self, t: float, request: Request, answer: AdmissionAnswer, latency_s: float) -> None: ...

    def pause(self, t: float, decode: int, sleep_s: float, queue_depth: int | None) -> None: ...

    def binding(self, t: float, request: Request) -> None: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """What the core decides by. `resident`: the design under test, follow-up turns may be appended on the D that has the session.
    `come_back` (hint `drain`): a refused turn that its D asks to wait gives its permit to others and asks again, paused `max_pause_s` in all at most;
    without it a turn pauses once and then goes through a P."""

    concurrency: int
    disaggregated: bool
    resident: bool
    backpressure: bool = False
    come_back: bool = False
    max_pause_s: float = 2.0
    seed: int = 1


class ReplayCore:
    """One run's state. Times are seconds since the run's start; workers are indices into the view's lists.

    `sessions` are taken in one by one in the order of their starts, the next when the one before has begun: a long run holds only what
    is under way. (A sequence is put in that order; an iterator must have it.) `planned` counts the turns of those taken in so far, all of them once the run has ended.
    """

    def __init__(self, sessions: Iterable[PlannedSession], settings: Settings, view: ClusterView, decode_policy: DecodePolicy,
                 prefill_policy: PrefillPolicy | None, journal: Journal) -> None:
        self.settings, self.view, self.journal = settings, view, journal
        self._decode_policy, self._prefill_policy = decode_policy, prefill_policy
        self._coming = iter(sorted(sessions, key=lambda s: s.start_t) if isinstance(sessions, Sequence) else sessions)
        self._sessions: dict[str, PlannedSession] = {}
        self._home: dict[str, int] = {}
        self._opened: set[tuple[str, int]] = set()
        self._permits = settings.concurrency
        self._queue: deque[Request] = deque()
        self._live: dict[str, Request] = {}
        self._signal_depth: list[int | None] = [None] * len(view.decode)
        rooms = Random(f"rooms:{settings.seed}")
        self._next_room, self._room_step = rooms.getrandbits(63), rooms.getrandbits(63) | 1
        self.planned = self.completed = self.failed = self.truncated = 0
        self.peak_inflight = 0
        self._closed = False

    # events -----------------------------------------------------------------------------------------------------------

    def start(self) -> list[Command]:
        return self._take_in()

    def _take_in(self) -> list[Command]:
        """The next session that has anything to send."""
        for session in self._coming:
            if session.requests:
                self._sessions[session.id] = session
                self.planned += len(session.requests)
                first = session.requests[0]
                first.scheduled_t = session.start_t
                self._live[first.id] = first
                return [WaitUntil(first.scheduled_t, first)]
        return []

    def wake(self, now: float, request: Request) -> list[Command]:
        """The time of a WaitUntil has come: the turn is due, or its pause is over."""
        if self._closed or request.state is State.ENDED:
            return []
        if request.state is State.PAUSED and not self.settings.come_back:
            return self._send(now, request)
        out = self._take_in() if request.turn == 0 else []
        if self._permits == 0:
            request.state = State.WAITING
            self._queue.append(request)
        else:
            out.extend(self._depart(now, request))
        return out

    def admission_answered(self, now: float, request: Request, answer: AdmissionAnswer | None) -> list[Command]:
        """`None`: the call failed; the turn then goes through a P."""
        if request.state is not State.ASKING:
            return []
        if answer is None:
            answer = AdmissionAnswer(can_admit=False, reason="no answer")
        worker = self.view.decode[request.decode]
        worker.load = Load(now, answer.available_tokens, answer.token_usage, None, answer.queue_depth, answer.prealloc_queue,
                           answer.retracted_queue)
        self.view.now = now
        self.journal.admission(now, request, answer, now - request.asked_t)
        request.admission = "admitted" if answer.can_admit else "rejected"
        if self.settings.backpressure:
            worker.pause_until = now + min(answer.recommended_pause_ms / 1000.0, self.settings.max_pause_s)
            self._signal_depth[request.decode] = answer.queue_depth
        if answer.can_admit:
            request.path = "direct"
        else:
            request.path = "fallback"
            asked = request.decode
            worker.resident.pop(request.session, None)
            self._move(request, self._decode_policy.rejected(request, self.view, asked))
            if self.settings.come_back and request.decode == asked:
                wait_s = min(answer.recommended_pause_ms, self.settings.max_pause_s * 1000.0 - request.pause_ms) / 1000.0
                if wait_s > SHORTEST_WAIT_S:
                    return self._come_back(now, request, wait_s)
        return self._gate(now, request)

    def first_token(self, now: float, request: Request) -> None:
        if request.first_token_t is None and request.state is State.SENT:
            request.first_token_t = now
            if request.room is not None and request.prefill is not None:
                self.view.link(request.prefill, request.decode).succeeded_t = now

    def finished(self, now: float, request: Request, outcome: Outcome) -> list[Command]:
        if request.state is not State.SENT:
            return []
        request.status = "ok"
        request.output_tokens, request.cached_tokens = outcome.output_tokens, outcome.cached_tokens
        request.finish_reason, request.retractions, request.slot_lost = outcome.finish_reason, outcome.retractions, outcome.slot_lost
        self.completed += 1
        if self.settings.resident:
            self.view.decode[request.decode].resident[request.session] = request.input_tokens + outcome.output_tokens
        return self._ended(now, request)

    def failed_with(self, now: float, request: Request, kind: str, message: str) -> list[Command]:
        """`kind` is one of schemas.ERROR_KINDS. The session goes on, the trace's answer standing in for the missing one."""
        if request.state is not State.SENT:
            return []
        request.status, request.error_kind, request.error_message = "error", kind, message[:500]
        self.failed += 1
        if kind in ("kv_transfer", "peer_dead") and request.prefill is not None:
            self.view.link(request.prefill, request.decode).failed_t = now
        return self._ended(now, request)

    def load_reported(self, worker: int, load: Load) -> None:
        self.view.decode[worker].load = load

    def cut(self, now: float) -> None:
        """The run stops here: what was due and has not ended is truncated, never an error. Turns not yet due leave no row."""
        self._closed = True
        for request in list(self._live.values()):
            if request.scheduled_t <= now and request.state is not State.ENDED:
                request.status = "truncated"
                if request.state in (State.PLANNED, State.WAITING):  # not routed yet: the way it would have gone without an admission
                    request.path = "dp" if not self.settings.disaggregated else "seed" if request.turn == 0 else "fallback"
                request.state = State.ENDED
                self.journal.request(request)
        self._live.clear()
        self.planned += sum(len(session.requests) for session in self._coming)
        self.truncated = self.planned - self.completed - self.failed

    @property
    def done(self) -> bool:
        return self._closed or not self._live

    def check_books(self) -> None:
        """planned = completed + failed + truncated, or the run is not valid."""
        if self.planned != self.completed + self.failed + self.truncated:
            raise RunError(f"the run's books do not balance: {self.planned} turns planned, but {self.completed} completed + {self.failed} "
                           f"failed + {self.truncated} truncated; the run is not valid")

    # the way of a turn ------------------------------------------------------------------------------------------------

    def _depart(self, now: float, request: Request) -> list[Command]:
        self._permits -= 1
        self.peak_inflight = max(self.peak_inflight, self.settings.concurrency - self._permits)
        view, home = self.view, self._home.get(request.session)
        view.now = now
        request.decode = self._decode_policy.choose(request, view, home)
        if self.settings.disaggregated:
            assert self._prefill_policy is not None
            request.prefill = self._prefill_policy.choose(request, view, request.decode)
            request.path = "seed" if request.turn == 0 else "fallback"
        else:
            request.path = "dp"
        if self.settings.resident and request.turn > 0 and request.decode == home:
            request.state, request.asked_t = State.ASKING, now
            return [AskAdmission(request)]
        return self._gate(now, request)

    def _move(self, request: Request, decode: int) -> None:
        """A refused turn goes to another D than the one asked: its P is chosen again, for that link."""
        if decode != request.decode:
            request.decode = decode
            if self._prefill_policy is not None:
                request.prefill = self._prefill_policy.choose(request, self.view, decode)

    def _gate(self, now: float, request: Request) -> list[Command]:
        """Hold the turn back while its D asks for a pause; one pause a turn, router sends and direct sends alike."""
        until = self.view.decode[request.decode].pause_until
        if self.settings.backpressure and not self.settings.come_back and now < until:
            request.state = State.PAUSED
            request.pause_ms += (until - now) * 1000.0
            self.journal.pause(now, request.decode, until - now, self._signal_depth[request.decode])
            return [WaitUntil(until, request)]
        return self._send(now, request)

    def _come_back(self, now: float, request: Request, wait_s: float) -> list[Command]:
        """The turn waits without a permit and asks again: until then others may be served, and sessions end."""
        request.state = State.PAUSED
        request.pause_ms += wait_s * 1000.0
        self.journal.pause(now, request.decode, wait_s, self._signal_depth[request.decode])
        return [WaitUntil(now + wait_s, request), *self._give_permit(now)]

    def _give_permit(self, now: float) -> list[Command]:
        self._permits += 1
        return self._depart(now, self._queue.popleft()) if self._queue else []

    def _send(self, now: float, request: Request) -> list[Command]:
        request.state, request.dispatched_t = State.SENT, now
        worker = self.view.decode[request.decode]
        worker.inflight += 1
        worker.inflight_tokens += request.input_tokens + request.asked_output_tokens
        out: list[Command] = []
        if self.settings.disaggregated and request.path != "direct":
            request.room = self._room()
            assert request.prefill is not None
            self.view.link(request.prefill, request.decode).inflight += 1
        if self.settings.resident:
            home = self._home.get(request.session)
            if home is not None:
                self.view.decode[home].resident.pop(request.session, None)  # what is under way is in `inflight_tokens`
                if home != request.decode:  # one home at a time
                    out.append(CloseSession(request.session, home))
            if (request.session, request.decode) not in self._opened:
                self._opened.add((request.session, request.decode))
                self.journal.binding(now, request)
        self._home[request.session] = request.decode
        self._decode_policy.sent(request, request.decode)
        out.append(Send(request))
        return out

    def _ended(self, now: float, request: Request) -> list[Command]:
        request.state, request.finished_t = State.ENDED, now
        worker = self.view.decode[request.decode]
        worker.inflight -= 1
        worker.inflight_tokens -= request.input_tokens + request.asked_output_tokens
        if request.room is not None and request.prefill is not None:
            self.view.link(request.prefill, request.decode).inflight -= 1
        self._live.pop(request.id, None)
        self.journal.request(request)
        out: list[Command] = []
        rest = self._sessions[request.session].requests
        if request.turn + 1 < len(rest):
            following = rest[request.turn + 1]
            following.scheduled_t = now + following.gap_s
            answered = request.output_tokens if request.output_tokens is not None else request.asked_output_tokens
            following.history_tokens = min(request.input_tokens + answered, following.input_tokens)
            if following.shared_tokens is not None:
                following.history_tokens = min(following.history_tokens, following.shared_tokens)
            self._live[following.id] = following
            out.append(WaitUntil(following.scheduled_t, following))
        else:
            self._forget(request, worker)
            if self.settings.resident:
                out.append(CloseSession(request.session, request.decode))
        out.extend(self._give_permit(now))
        return out

    def _forget(self, request: Request, worker: WorkerView) -> None:
        """The session has sent its last turn: a long run keeps nothing of it."""
        del self._sessions[request.session]
        self._home.pop(request.session, None)
        if self.settings.resident:
            worker.resident.pop(request.session, None)
            for decode in range(len(self.view.decode)):
                self._opened.discard((request.session, decode))

    def _room(self) -> int:
        """A 63-bit room, never twice in a run: a duplicate can crash SGLang's schedulers (sglang issue 40125). An odd step meets every
        number once before the first comes back, so nothing has to be remembered."""
        room = self._next_room
        self._next_room = (room + self._room_step) & (2**63 - 1)
        return room
