"""How figures and foreign text look."""

from __future__ import annotations

import math

import pytest

from apd_replay.report.numbers import estimate, moment, number, plain, tick


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1.426, "1.43"), (0.0709, "0.0709"), (62043.2, "62,043"), (62043, "62,043"), (4449, "4,449"), (12.587, "12.6"), (3.0, "3"), (-0.0213, "−0.0213"), (0, "0"), (1e-9, "1.00e−09"), (0.00015, "0.000150"),
     (None, "–"), (math.inf, "∞"), (-math.inf, "−∞"), (math.nan, "–"), (True, "yes"), ("a\x1bb", "a\\u001bb")],
)  # fmt: skip
def test_number(value: object, shown: str) -> None:
    assert number(value) == shown


def test_ticks_have_no_idle_zeros() -> None:
    assert [tick(v) for v in (0.5, 2.5, 1000.0, 0.25)] == ["0.5", "2.5", "1,000", "0.25"]


def test_an_estimate_shows_its_interval_only_where_there_is_one() -> None:
    assert estimate(2.318, 2.11, 2.55, "ratio") == "2.32 [2.11, 2.55] ratio"
    assert estimate(2.318, None, None, "ratio") == "2.32 ratio"
    assert estimate(None, None, None, "ratio") == "–"


def test_text_that_could_hide_or_reorder_is_made_visible_and_short() -> None:
    assert plain("a\x00\u202eb\n") == "a\\u0000\\u202eb\\u000a"
    assert len(plain("x" * 500, 30)) == 30


@pytest.mark.parametrize("ts", [None, math.inf, math.nan, 1e300])
def test_a_time_that_is_none(ts: float | None) -> None:
    assert moment(ts) == "–"


def test_a_time_is_utc() -> None:
    assert moment(1777996800.0) == "2026-05-05 16:00:00"
