"""F3 and F6 as rules, and a turn that comes back instead of falling back."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from test_core import begin, core, only, session

from apd_replay.replay import hints
from apd_replay.replay.core import (
    AdmissionAnswer,
    AskAdmission,
    CloseSession,
    Outcome,
    ReplayCore,
    Request,
    Send,
    WaitUntil,
)
from apd_replay.replay.eviction import rank
from apd_replay.replay.hints import DRAIN_SPAN_S, LONGEST_DRAIN_MS, DrainMeter, Pressure
from apd_replay.routing.kv_aware import KvAware
from apd_replay.routing.migrating import Migrating


def test_idle_lru_knows_only_time_and_tiers_put_the_cold_first() -> None:
    slots = {"old hot": (3, 1.0), "cold": (0, 5.0), "older cold": (0, 2.0), "new hot": (1, 9.0)}
    assert sorted(slots, key=lambda s: rank("idle_lru", *slots[s])) == ["old hot", "older cold", "cold", "new hot"]
    assert sorted(slots, key=lambda s: rank("tiered", *slots[s])) == ["older cold", "cold", "old hot", "new hot"]


def test_the_drain_hint_is_the_time_until_the_room_is_there() -> None:
    assert hints.drain(0, 100.0) == hints.drain(-5, 0.0) == 0.0
    assert hints.drain(3000, 1000.0) == 3000.0
    assert hints.drain(1, 1000.0) == 100.0
    assert hints.drain(10**6, 1.0) == hints.drain(10, 0.0) == LONGEST_DRAIN_MS


def test_the_drain_meter_finds_a_steady_rate_and_forgets() -> None:
    meter = DrainMeter()
    assert meter.rate(0.0) == 0.0
    for t in range(1, 301):
        meter.left(float(t), 500)
    assert meter.rate(300.0) == pytest.approx(500.0, rel=0.03)
    assert meter.rate(300.0 + DRAIN_SPAN_S) == pytest.approx(meter.rate(300.0) / 2.71828, rel=0.01)


def test_every_formula_is_made_by_its_name() -> None:
    d = Pressure(transfer_queue=10, retracted_queue=0, usage_after=0.5, short_tokens=400, drained_tokens_per_s=1000.0)
    found = {name: hints.formula(name, 1000.0)(d) for name in ("off", "linear", "composite", "drain")}
    assert found == {"off": 0.0, "linear": 1000.0, "composite": 1000.0, "drain": 400.0}


def refused(pause_ms: float) -> AdmissionAnswer:
    return AdmissionAnswer(False, recommended_pause_ms=pause_ms, queue_depth=1)


def asking(replay: ReplayCore, now: float = 0.0) -> Request:
    """Session `a` asks for its turn 1, one second after its first answer."""
    first = next(c.request for c in begin(replay, now) if isinstance(c, Send) and c.request.session == "a")
    replay.first_token(now, first)
    due = only(replay.finished(now, first, Outcome(100, 0)), WaitUntil)
    return only(replay.wake(due.t, due.request), AskAdmission).request


def drained(*sessions: Any, **settings: Any) -> ReplayCore:
    return core(*sessions, backpressure=True, come_back=True, **settings)[0]


def test_a_refused_turn_waits_without_a_permit_and_asks_again() -> None:
    replay = drained(session("a", 2), session("b", 1, start_t=0.5), concurrency=1, max_pause_s=5.0)
    [waiting_b] = [c.request for c in replay.wake(0.0, replay.start()[0].request) if isinstance(c, WaitUntil)]  # type: ignore[union-attr]
    a = next(r for r in replay._live.values() if r.session == "a")
    due = only(replay.finished(1.0, a, Outcome(100, 0)), WaitUntil)
    turn = only(replay.wake(2.0, due.request), AskAdmission).request
    assert replay.wake(2.0, waiting_b) == []  # the one permit is taken
    commands = replay.admission_answered(2.0, turn, refused(1500.0))
    assert only(commands, WaitUntil).t == 3.5
    assert only(commands, Send).request.session == "b"
    assert turn.dispatched_t is None and turn.pause_ms == 1500.0
    replay.finished(3.0, waiting_b, Outcome(100, 0))
    assert only(replay.wake(3.5, turn), AskAdmission).request is turn
    assert only(replay.admission_answered(3.5, turn, AdmissionAnswer(True)), Send).request.path == "direct"


def test_a_turn_waits_max_pause_s_in_all_and_then_goes_through_a_p() -> None:
    replay = drained(session("a", 2), max_pause_s=2.0)
    turn = asking(replay)
    waits = []
    now = 1.0
    for _ in range(9):
        commands = replay.admission_answered(now, turn, refused(1500.0))
        if any(isinstance(c, Send) for c in commands):
            break
        now = only(commands, WaitUntil).t
        waits.append(now)
        only(replay.wake(now, turn), AskAdmission)
    assert waits == [2.5, 3.0]
    assert (turn.path, turn.pause_ms, turn.admission) == ("fallback", 2000.0, "rejected")
    replay.failed_with(now, turn, "kv_transfer", "")
    replay.check_books()


def test_without_a_hint_a_refused_turn_goes_at_once() -> None:
    replay = drained(session("a", 2))
    turn = asking(replay)
    assert only(replay.admission_answered(1.0, turn, refused(0.0)), Send).request.path == "fallback"


def test_a_cut_run_counts_a_turn_that_waits() -> None:
    replay = drained(session("a", 2))
    turn = asking(replay)
    replay.admission_answered(1.0, turn, refused(500.0))
    replay.cut(1.2)
    replay.check_books()
    assert (turn.status, replay.truncated) == ("truncated", 1)


def test_a_session_that_moves_has_one_home() -> None:
    """Refused by a full D, it goes to the empty one through a P; the old home is closed as it leaves, and the next turn asks the new one."""
    replay, journal = core(session("a", 3), policy=Migrating(KvAware()))
    for worker in replay.view.decode:
        worker.pool_tokens = 10_000
    turn = asking(replay)
    old = turn.decode
    replay.view.decode[old].resident["other"] = 9_500
    commands = replay.admission_answered(1.0, turn, AdmissionAnswer(False))
    assert only(commands, CloseSession).worker == old
    assert only(commands, Send).request.decode == 1 - old
    due = only(replay.finished(2.0, turn, Outcome(100, 0)), WaitUntil)
    assert only(replay.wake(3.0, due.request), AskAdmission).request.decode == 1 - old
    assert [d for _, _, d in journal.bindings] == [old, 1 - old]
    assert [sorted(w.resident) for w in replay.view.decode] == ([["other"], ["a"]] if old == 0 else [["a"], ["other"]])


def test_moves_do_not_play_ping_pong() -> None:
    """Two D's, equally full: however often it is refused, the session stays."""
    replay, _ = core(session("a", 6), policy=Migrating(KvAware()))
    for worker in replay.view.decode:
        worker.pool_tokens = 10_000
        worker.resident[f"other of {worker.name}"] = 9_500
    turn = asking(replay)
    homes = [turn.decode]
    now = 1.0
    while turn.turn < 5:
        replay.admission_answered(now, turn, AdmissionAnswer(False))
        due = only(replay.finished(now, turn, Outcome(100, 0)), WaitUntil)
        now, turn = due.t, due.request
        only(replay.wake(now, turn), AskAdmission)
        homes.append(turn.decode)
    assert all(a == b for a, b in pairwise(homes))
