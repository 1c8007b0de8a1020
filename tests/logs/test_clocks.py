"""Which clock a log is written by, where only the run's end is known."""

from __future__ import annotations

import pytest

from apd_replay.logs.clocks import Evidence, decide

HOUR = 3600.0


def log(last: float | None, role: str = "decode") -> Evidence:
    return Evidence(role, None if last is None else last - 100.0, last, [], [], [])


@pytest.mark.parametrize("zone_s", [0.0, 8 * HOUR, -5.5 * HOUR])
def test_a_worker_that_falls_idle_early_shares_the_clock_of_the_others(zone_s: float) -> None:
    """It stood 15 minutes late in the figures of a simulated run: its last line came 15 minutes before the run's end."""
    start, end = 1_767_225_600.0, 1_767_225_600.0 + 2711.0
    clocks = decide({"decode-0": log(end - 3.0 + zone_s), "decode-1": log(end - 1264.0 + zone_s)}, (start, end))
    assert {clock.offset_s for clock in clocks.values()} == {zone_s}


def test_a_log_without_times_has_no_clock() -> None:
    assert decide({"decode-0": log(None), "decode-1": log(1000.0)}, (0.0, 1000.0))["decode-0"].offset_s is None
