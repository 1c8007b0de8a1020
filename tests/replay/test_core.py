"""The replay core alone: what it decides, whoever drives it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from apd_replay.errors import RunError
from apd_replay.replay.core import (
    AdmissionAnswer,
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
from apd_replay.routing.kv_aware import KvAware
from apd_replay.routing.round_robin import RoundRobin, RoundRobinPrefill
from apd_replay.routing.view import ClusterView, DecodePolicy, WorkerView


@dataclass
class Lists:
    """A journal that a test can look at."""

    requests: list[Request] = field(default_factory=list)
    admissions: list[tuple[float, str, bool, float]] = field(default_factory=list)
    pauses: list[tuple[float, int, float, int | None]] = field(default_factory=list)
    bindings: list[tuple[float, str, int]] = field(default_factory=list)

    def request(self, request: Request) -> None:
        self.requests.append(request)

    def admission(self, t: float, request: Request, answer: AdmissionAnswer, latency_s: float) -> None:
        self.admissions.append((t, request.id, answer.can_admit, latency_s))

    def pause(self, t: float, decode: int, sleep_s: float, queue_depth: int | None) -> None:
        self.pauses.append((t, decode, sleep_s, queue_depth))

    def binding(self, t: float, request: Request) -> None:
        self.bindings.append((t, request.session, request.decode))


def session(name: str, turns: int, start_t: float = 0.0, gap_s: float = 1.0, tokens: int = 1000) -> PlannedSession:
    return PlannedSession(name, start_t, [
        Request(id=f"{name}-{k}", session=name, turn=k, input_tokens=tokens * (k + 1), asked_output_tokens=100, shared_tokens=None, hash_ids=None,
                gap_s=gap_s if k else 0.0) for k in range(turns)])  # fmt: skip


def core(*sessions: PlannedSession, policy: DecodePolicy | None = None, decode: int = 2, **settings: Any) -> tuple[ReplayCore, Lists]:
    journal = Lists()
    chosen = {"concurrency": 8, "disaggregated": True, "resident": True, **settings}
    view = ClusterView([WorkerView(f"decode-{d}") for d in range(decode)], [WorkerView("prefill-0"), WorkerView("prefill-1")])
    return ReplayCore(sessions, Settings(**chosen), view, policy or KvAware(), RoundRobinPrefill() if chosen["disaggregated"] else None, journal), journal


def only(commands: list[Command], kind: type) -> Any:
    found = [c for c in commands if isinstance(c, kind)]
    assert len(found) == 1, commands
    return found[0]


def begin(replay: ReplayCore, now: float = 0.0) -> list[Command]:
    """Start, and wake every first turn at once."""
    out: list[Command] = []
    waits = replay.start()
    while waits:
        commands = replay.wake(now, waits.pop().request)  # type: ignore[union-attr]
        waits = [c for c in commands if isinstance(c, WaitUntil)]
        out += [c for c in commands if not isinstance(c, WaitUntil)]
    return out


def first_turns(replay: ReplayCore) -> list[Request]:
    """The first turn of every session, none of them due yet."""
    out, waits = [], replay.start()
    while waits:
        out.append(waits[0].request)  # type: ignore[union-attr]
        waits = replay._take_in()
    return out


def finish(replay: ReplayCore, now: float, request: Request) -> list[Command]:
    replay.first_token(now - 0.1, request)
    return replay.finished(now, request, Outcome(request.asked_output_tokens, 0))


def follow_up(replay: ReplayCore) -> Request:
    """Turn 0 of a one-session replay answered at 1.0; turn 1 as it becomes due at 2.0."""
    first = only(begin(replay), Send).request
    wait = only(finish(replay, 1.0, first), WaitUntil)
    assert wait.t == 2.0
    return only(replay.wake(2.0, wait.request), AskAdmission).request


def test_a_permit_is_taken_when_the_turn_is_ready_never_while_it_waits_for_its_gap() -> None:
    replay, _ = core(session("a", 2), session("b", 1, start_t=1.5), concurrency=1)
    first, other = first_turns(replay)
    only(replay.wake(0.0, first), Send)
    wait = only(finish(replay, 1.0, first), WaitUntil)  # a's next turn waits for its gap and holds nothing
    only(replay.wake(1.5, other), Send)
    assert replay.wake(wait.t, wait.request) == []  # due, but b has the permit
    asked = only(finish(replay, 3.0, other), AskAdmission)
    assert asked.request.id == "a-1"
    assert replay.peak_inflight == 1


def test_turns_that_wait_for_a_permit_leave_in_the_order_in_which_they_were_due() -> None:
    replay, _ = core(session("a", 1), session("b", 1), session("c", 1), concurrency=1)
    a, b, c = first_turns(replay)
    for t, request in ((0.0, a), (0.1, c), (0.2, b)):
        replay.wake(t, request)
    sent = [only(finish(replay, 1.0, a), Send).request.id, only(finish(replay, 2.0, c), Send).request.id]
    assert sent == ["c-0", "b-0"]


def test_a_follow_up_turn_asks_once_and_goes_direct_when_admitted() -> None:
    replay, journal = core(session("a", 2))
    turn = follow_up(replay)
    sent = only(replay.admission_answered(2.01, turn, AdmissionAnswer(True)), Send).request
    assert (sent.path, sent.admission, sent.room) == ("direct", "admitted", None)
    assert replay.admission_answered(2.02, turn, AdmissionAnswer(False)) == []  # a second answer changes nothing
    assert [(t, rid, ok) for t, rid, ok, _ in journal.admissions] == [(2.01, "a-1", True)]
    assert journal.admissions[0][3] == pytest.approx(0.01)


@pytest.mark.parametrize("answer", [AdmissionAnswer(False, reason="full"), None])
def test_a_rejected_turn_and_one_whose_call_failed_go_through_a_p(answer: AdmissionAnswer | None) -> None:
    replay, _ = core(session("a", 2))
    sent = only(replay.admission_answered(2.01, follow_up(replay), answer), Send).request
    assert (sent.path, sent.admission, sent.room is not None) == ("fallback", "rejected", True)


def test_first_turns_and_designs_without_residency_ask_nothing() -> None:
    replay, journal = core(session("a", 2), resident=False)
    first = only(begin(replay), Send).request
    wait = only(finish(replay, 1.0, first), WaitUntil)
    second = only(replay.wake(wait.t, wait.request), Send).request
    assert [(r.path, r.admission) for r in (first, second)] == [("seed", "none"), ("fallback", "none")]
    assert not journal.admissions and not journal.bindings


def test_a_session_stays_on_its_first_d_and_is_bound_once() -> None:
    replay, journal = core(session("a", 4), decode=3)
    request = only(begin(replay), Send).request
    homes = [request.decode]
    now = 1.0
    for _ in range(3):
        wait = only(finish(replay, now, request), WaitUntil)
        request = only(replay.wake(wait.t, wait.request), AskAdmission).request
        only(replay.admission_answered(wait.t, request, AdmissionAnswer(False)), Send)
        homes.append(request.decode)
        now = wait.t + 1.0
    assert only(finish(replay, now, request), CloseSession).session == "a"
    assert len(set(homes)) == 1
    assert [b[1:] for b in journal.bindings] == [("a", homes[0])]


def test_a_session_that_moves_is_closed_where_it_was() -> None:
    replay, journal = core(session("a", 2), policy=RoundRobin())
    first = only(begin(replay), Send).request
    wait = only(finish(replay, 1.0, first), WaitUntil)
    commands = replay.wake(wait.t, wait.request)
    assert only(commands, CloseSession).worker == first.decode
    assert only(commands, Send).request.decode != first.decode
    assert len(journal.bindings) == 2


def test_a_hint_holds_back_direct_and_router_sends_and_is_capped() -> None:
    for admitted in (True, False):
        replay, journal = core(session("a", 2), backpressure=True, max_pause_s=2.0)
        turn = follow_up(replay)
        pause = only(replay.admission_answered(2.0, turn, AdmissionAnswer(admitted, recommended_pause_ms=9000.0, queue_depth=12)), WaitUntil)
        assert pause.t == 4.0
        assert journal.pauses == [(2.0, turn.decode, 2.0, 12)]
        assert only(replay.wake(4.0, turn), Send).request.pause_ms == 2000.0


def test_a_later_hint_replaces_an_earlier_one_and_pauses_are_per_d() -> None:
    replay, journal = core(session("a", 2), session("b", 2), decode=2, backpressure=True)
    a, b = (c.request for c in begin(replay))  # type: ignore[union-attr]
    assert a.decode != b.decode
    turns = [only(replay.wake(2.0, only(finish(replay, 1.0, r), WaitUntil).request), AskAdmission).request for r in (a, b)]
    only(replay.admission_answered(2.0, turns[0], AdmissionAnswer(True, recommended_pause_ms=1000.0)), WaitUntil)
    only(replay.admission_answered(2.0, turns[1], AdmissionAnswer(True, recommended_pause_ms=0.0)), Send)  # b's D asked for none
    assert len(journal.pauses) == 1


def test_without_backpressure_hints_are_ignored() -> None:
    replay, journal = core(session("a", 2))
    only(replay.admission_answered(2.0, follow_up(replay), AdmissionAnswer(True, recommended_pause_ms=2000.0)), Send)
    assert not journal.pauses


def test_a_failed_turn_counts_and_the_session_goes_on_with_the_traces_answer() -> None:
    replay, journal = core(session("a", 2))
    first = only(begin(replay), Send).request
    wait = only(replay.failed_with(1.0, first, "kv_transfer", "x" * 900), WaitUntil)
    assert wait.request.history_tokens == 1100  # prompt + the answer that the trace has
    assert (journal.requests[0].status, journal.requests[0].error_kind, len(journal.requests[0].error_message or "")) == ("error", "kv_transfer", 500)
    assert replay.view.link(first.prefill or 0, first.decode).failed_t == 1.0


def test_an_answer_after_the_end_changes_nothing() -> None:
    replay, journal = core(session("a", 1))
    first = only(begin(replay), Send).request
    replay.failed_with(1.0, first, "client_timeout", "")
    assert finish(replay, 2.0, first) == []
    assert (replay.completed, replay.failed, len(journal.requests)) == (0, 1, 1)


def test_the_books_balance_whether_turns_end_well_badly_or_not_at_all() -> None:
    replay, journal = core(session("a", 3), session("b", 2), session("c", 2, start_t=50.0))
    a, b, _ = first_turns(replay)
    replay.wake(0.0, a)
    replay.wake(0.0, b)
    finish(replay, 1.0, a)
    replay.failed_with(1.5, b, "aborted", "")
    replay.cut(2.2)  # a-1 was due at 2.0; b-1 (2.5) and c-0 (50) were not
    replay.check_books()
    assert (replay.planned, replay.completed, replay.failed, replay.truncated) == (7, 1, 1, 5)
    assert [(r.id, r.status, r.path) for r in journal.requests if r.status == "truncated"] == [("a-1", "truncated", "fallback")]
    assert replay.done and replay.wake(3.0, b) == []


def test_sessions_are_taken_in_one_by_one_as_they_begin() -> None:
    replay, _ = core(session("a", 2), session("b", 3, start_t=5.0), session("c", 1, start_t=9.0))
    first = only(replay.start(), WaitUntil)
    assert (first.request.id, replay.planned) == ("a-0", 2)
    following = only(replay.wake(0.0, first.request), WaitUntil)
    assert (following.request.id, following.t, replay.planned) == ("b-0", 5.0, 5)
    replay.cut(3.0)
    replay.check_books()
    assert (replay.planned, replay.truncated) == (6, 6)


def test_books_that_do_not_balance_are_refused() -> None:
    replay, _ = core(session("a", 2))
    replay.start()
    with pytest.raises(RunError, match="2 turns planned, but 0 completed"):
        replay.check_books()


def test_rooms_are_unique_follow_the_seed_and_fit_63_bits() -> None:
    def rooms(seed: int) -> list[int]:
        replay, journal = core(*(session(f"s{k}", 1) for k in range(500)), concurrency=500, seed=seed)
        for command in begin(replay):
            finish(replay, 1.0, command.request)  # type: ignore[union-attr]
        return [r.room for r in journal.requests if r.room is not None]

    assert len(set(rooms(1))) == 500
    assert rooms(1) == rooms(1) != rooms(2)
    assert all(0 <= room < 2**63 for room in rooms(3))


def test_a_session_that_has_ended_leaves_nothing_behind() -> None:
    replay, _ = core(*(session(f"s{k}", 1) for k in range(20)), concurrency=20)
    for command in begin(replay):
        finish(replay, 1.0, command.request)  # type: ignore[union-attr]
    assert not replay._home and not replay._opened and not replay._live
    assert not any(worker.resident or worker.inflight or worker.inflight_tokens for worker in replay.view.decode)
