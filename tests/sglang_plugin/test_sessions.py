"""Slots of sessions: who keeps one, who loses it, what an admission sets aside. Pins are plain strings here."""

from __future__ import annotations

import pytest

from apd_replay.sglang_plugin.sessions import Session, Sessions, Stage


def resident(sessions: Sessions, name: str, tokens: int, now: float) -> Session:
    """A session after one turn through a P that ended at `now`."""
    session, pin = sessions.arrive(name, f"{name}-0", direct=False, now=now)
    assert pin is None
    assert sessions.ended(session, f"{name}-0", now) is None
    assert sessions.keep(session, f"pin-{name}", tokens) is None
    return session


@pytest.fixture
def sessions() -> Sessions:
    return Sessions()


def test_a_direct_turn_keeps_its_slot_until_it_is_scheduled_and_has_a_new_one_after(sessions: Sessions) -> None:
    a = resident(sessions, "a", 100, 1.0)
    sessions.admit(a, 2.0, 10.0)
    assert a.stage is Stage.ADMITTED and a.pin == "pin-a"
    _, pin = sessions.arrive("a", "a-1", direct=True, now=3.0)
    assert pin is None and a.stage is Stage.QUEUED and a.tokens == 100
    assert sessions.scheduled(a) == "pin-a"
    assert a.stage is Stage.RUNNING and a.pin is None
    assert sessions.ended(a, "a-1", 4.0) is None
    assert a.stage is Stage.COLD
    sessions.keep(a, "longer", 140)
    assert a.stage is Stage.IDLE and sessions.held_tokens == 140


def test_a_turn_through_a_prefill_worker_hands_the_slot_back(sessions: Sessions) -> None:
    a = resident(sessions, "a", 100, 1.0)
    _, pin = sessions.arrive("a", "a-1", direct=False, now=2.0)
    assert pin == "pin-a" and a.stage is Stage.RUNNING and sessions.held_tokens == 0


def test_a_queued_turn_that_is_aborted_leaves_the_slot_as_it_was(sessions: Sessions) -> None:
    a = resident(sessions, "a", 100, 1.0)
    sessions.admit(a, 2.0, 10.0, reserve=50)
    sessions.arrive("a", "a-1", direct=True, now=3.0)
    assert sessions.ended(a, "a-1", 4.0) is None
    assert (a.stage, a.pin, a.reserved) == (Stage.IDLE, "pin-a", 0)


def test_an_admission_expires_and_its_reservation_with_it(sessions: Sessions) -> None:
    a, b = resident(sessions, "a", 100, 1.0), resident(sessions, "b", 100, 1.0)
    sessions.admit(a, 2.0, 5.0, reserve=300)
    sessions.admit(b, 4.0, 5.0, reserve=30)
    assert sessions.reserved_tokens() == 330 and sessions.reserved_tokens(but=a) == 30
    assert sessions.expire(6.9) == []
    assert sessions.expire(7.0) == [a]
    assert a.stage is Stage.IDLE and a.pin == "pin-a" and sessions.reserved_tokens() == 30


def test_a_turn_that_came_in_time_keeps_its_reservation_until_it_is_scheduled(sessions: Sessions) -> None:
    a = resident(sessions, "a", 100, 1.0)
    sessions.admit(a, 2.0, 5.0, reserve=300)
    sessions.arrive("a", "a-1", direct=True, now=3.0)
    assert sessions.expire(100.0) == [] and sessions.reserved_tokens() == 300
    sessions.scheduled(a)
    assert sessions.reserved_tokens() == 0


def test_idle_lru_takes_idle_sessions_only_the_least_recently_used_first(sessions: Sessions) -> None:
    a, b, _, d = (resident(sessions, name, 100, now) for name, now in (("a", 3.0), ("b", 1.0), ("c", 2.0), ("d", 0.0)))
    sessions.admit(d, 4.0, 10.0)
    sessions.arrive("c", "c-1", direct=True, now=5.0)
    assert sessions.victims("idle_lru") == [b, a]
    assert sessions.victims("idle_lru", but=b) == [a]


def test_tiers_take_cold_sessions_then_hot_ones_then_admitted_ones(sessions: Sessions) -> None:
    """Hot: a turn was appended to what is kept (remedy F3); its KV comes anew, and it is cold again."""
    hot, cold, waiting = (resident(sessions, name, 10, now) for name, now in (("hot", 0.0), ("cold", 9.0), ("waiting", 1.0)))
    sessions.arrive("hot", "hot-1", direct=True, now=2.0)
    pin = sessions.scheduled(hot)
    sessions.scheduled(hot)  # its second chunk
    assert hot.direct_turns == 1
    sessions.ended(hot, "hot-1", 3.0)
    sessions.keep(hot, pin, 20)
    sessions.admit(waiting, 2.0, 100.0)
    assert sessions.victims("tiered") == [cold, hot, waiting]
    assert sessions.victims("idle_lru") == [hot, cold]
    sessions.arrive("hot", "hot-2", direct=False, now=10.0)
    assert hot.direct_turns == 0


def test_a_dropped_slot_keeps_the_session(sessions: Sessions) -> None:
    a = resident(sessions, "a", 100, 1.0)
    assert sessions.drop(a) == "pin-a"
    assert sessions.get("a") is a and a.stage is Stage.COLD and a.tokens == 0
    sessions.arrive("a", "a-1", direct=True, now=2.0)
    assert a.stage is Stage.QUEUED


def test_a_queued_turn_stays_queued_without_its_slot(sessions: Sessions) -> None:
    a = resident(sessions, "a", 100, 1.0)
    sessions.arrive("a", "a-1", direct=True, now=2.0)
    assert sessions.drop(a) == "pin-a" and a.stage is Stage.QUEUED


def test_close_between_turns_gives_the_slot_and_the_session_up(sessions: Sessions) -> None:
    resident(sessions, "a", 100, 1.0)
    session, pin = sessions.close("a")
    assert session is not None and pin == "pin-a" and len(sessions) == 0 and sessions.held_tokens == 0
    assert sessions.close("a") == (None, None)


def test_close_in_the_middle_of_a_turn_waits_for_its_end_and_keeps_nothing(sessions: Sessions) -> None:
    a = resident(sessions, "a", 100, 1.0)
    sessions.arrive("a", "a-1", direct=True, now=2.0)
    assert sessions.close("a") == (a, None) and sessions.get("a") is a and a.closing
    assert sessions.ended(a, "a-1", 3.0) == "pin-a"
    assert sessions.get("a") is None and sessions.held_tokens == 0


def test_two_requests_of_one_session_end_it_with_the_second(sessions: Sessions) -> None:
    a = resident(sessions, "a", 100, 1.0)
    sessions.arrive("a", "late", direct=False, now=2.0)
    sessions.arrive("a", "next", direct=True, now=3.0)
    assert sessions.ended(a, "late", 4.0) is None and a.requests == {"next"} and a.stage is Stage.RUNNING
    sessions.ended(a, "next", 5.0)
    assert a.stage is Stage.COLD


def test_a_new_slot_hands_the_old_one_back(sessions: Sessions) -> None:
    a = resident(sessions, "a", 100, 1.0)
    assert sessions.keep(a, "second", 120) == "pin-a" and a.pin == "second"
