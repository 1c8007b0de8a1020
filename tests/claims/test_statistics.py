"""Student's t against printed tables, and effects whose intervals can be worked out by hand."""

import math

import pytest

from apd_replay.claims.statistics import estimate, holm, t_cdf, t_quantile


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (10, 2.228), (20, 2.086), (30, 2.042), (120, 1.980)],
)
def test_quantiles_of_the_printed_table(freedom: int, expected: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(expected, abs=5e-4)
    assert t_quantile(0.025, freedom) == pytest.approx(-expected, abs=5e-4)


@pytest.mark.parametrize(("p", "freedom", "expected"), [(0.95, 2, 2.920), (0.995, 2, 9.925), (0.9995, 9, 4.781), (0.9, 1, 3.078)])
def test_other_columns_of_the_printed_table(p: float, freedom: int, expected: float) -> None:
    assert t_quantile(p, freedom) == pytest.approx(expected, abs=5e-4)


def test_cdf_of_one_and_two_degrees_in_closed_form() -> None:
    for t in (-30.0, -1.5, 0.0, 0.1, 2.0, 700.0):
        assert t_cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-12)
        assert t_cdf(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)), abs=1e-12)


def test_mean_of_one_experiment() -> None:
    e = estimate({"A": 1}, {"A": {1: 1.0, 2: 2.0, 3: 3.0}}, paired=False)
    assert e and e.low is not None and e.high is not None
    assert (e.value, e.n) == (2.0, 3)
    assert e.high - e.value == pytest.approx(4.302653 / math.sqrt(3), abs=1e-6)
    assert (e.lowest, e.highest, e.spread) == (1.0, 3.0, 2.0)


def test_pairs_take_away_what_both_sides_share() -> None:
    samples = {"A": {1: 11.0, 2: 21.0, 3: 31.5}, "B": {1: 10.0, 2: 20.0, 3: 30.0}}
    together = estimate({"A": 1, "B": -1}, samples, paired=True)
    apart = estimate({"A": 1, "B": -1}, samples, paired=False)
    assert together and apart and together.error is not None and apart.error is not None
    assert together.value == pytest.approx(apart.value)
    assert together.error < apart.error / 10
    assert (together.lowest, together.highest) == (1.0, 1.5)
    assert (apart.lowest, apart.highest) == (-19.0, 21.5)


def test_welch_degrees_of_freedom() -> None:
    e = estimate({"A": 1, "B": -1}, {"A": {1: 1.0, 2: 3.0}, "B": {1: 0.0, 2: 0.0, 3: 0.0}}, paired=False)
    assert e and e.freedom == pytest.approx(1.0) and e.error == pytest.approx(1.0)  # all the variance is A's


def test_no_variance_gives_a_point_and_one_replicate_no_interval() -> None:
    point = estimate({"A": 1}, {"A": {1: 0.3, 2: 0.1 + 0.2, 3: 0.3}}, paired=False)
    assert point and point.low == point.high == pytest.approx(0.3) and point.p_value(0.4) == 0.0
    single = estimate({"A": 1, "B": -1}, {"A": {1: 5.0, 2: 6.0}, "B": {1: 2.0}}, paired=False)
    assert single and single.low is None and single.spread == 1.0 and single.n == 1 and single.p_value(0.0) is None


def test_an_infinite_replicate_has_no_interval() -> None:
    e = estimate({"A": 1}, {"A": {1: 1.0, 2: math.inf, 3: 2.0}}, paired=False)
    assert e and e.value == math.inf and e.low is None
    assert estimate({"A": 1, "B": -1}, {"A": {1: math.inf}, "B": {1: math.inf}}, paired=False) is None


def test_missing_experiment_gives_nothing() -> None:
    assert estimate({"A": 1, "B": -1}, {"A": {1: 1.0}, "B": {}}, paired=False) is None


def test_four_experiments_at_once() -> None:
    samples = {e: {r: v + r for r in (1, 2, 3)} for e, v in (("E2", 4.0), ("E3", 1.0), ("E7", 2.0), ("E8", 0.5))}
    e = estimate({"E2": 1, "E3": -1, "E7": -1, "E8": 1}, samples, paired=True)
    assert e and e.value == pytest.approx(1.5) and e.low == pytest.approx(1.5)


def test_holm_stops_at_the_first_that_falls() -> None:
    assert holm({"a": 0.01, "b": 0.02, "c": 0.04}) == {"a", "b", "c"}
    assert holm({"a": 0.01, "b": 0.03, "c": 0.04}) == {"a"}
    assert holm({"a": 0.03, "b": 0.03}) == set()


def test_p_value_of_the_printed_table() -> None:
    e = estimate({"A": 1}, {"A": {1: 1.0, 2: 2.0, 3: 3.0}}, paired=False)
    assert e and e.high is not None
    assert e.p_value(e.high) == pytest.approx(0.05, abs=1e-9)
