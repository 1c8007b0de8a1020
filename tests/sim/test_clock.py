from __future__ import annotations

from typing import Any

from apd_replay.sim.clock import CLIENT, WORKER, Clock, Deadlines


def test_events_run_by_time_then_priority_then_order() -> None:
    clock, seen = Clock(), []
    clock.at(2.0, seen.append, "late")
    clock.at(1.0, seen.append, "client", CLIENT)
    clock.at(1.0, seen.append, "first", WORKER)
    clock.at(1.0, seen.append, "second", WORKER)
    assert clock.run() is False
    assert seen == ["first", "second", "client", "late"]
    assert clock.now == 2.0


def test_a_time_gone_by_means_now_and_a_limit_stops_before_what_is_later() -> None:
    clock, seen = Clock(), []
    clock.at(5.0, lambda _: clock.at(1.0, seen.append, "now"))
    clock.at(7.0, seen.append, "later")
    assert clock.run(6.0) is True
    assert (seen, clock.now) == (["now"], 6.0)


def test_a_deadline_takes_those_who_still_wait_and_nobody_else() -> None:
    clock, alive, gone = Clock(), {"a", "b", "c"}, []

    def expired(item: Any) -> None:
        gone.append((clock.now, item))
        alive.discard(item)

    deadlines = Deadlines(clock, 10.0, lambda item, since: item in alive, expired)
    for t, item in ((0.0, "a"), (1.0, "b"), (4.0, "c")):
        clock.at(t, deadlines.start, item)
    clock.at(9.0, lambda _: alive.discard("b"))
    clock.run()
    assert gone == [(10.0, "a"), (14.0, "c")]
