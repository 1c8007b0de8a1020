"""Effects over replicates: Student-t intervals, paired or Welch, and Holm's correction (DESIGN.md, "Statistics").

An effect is a weighted sum of a metric over experiments: {E0: 1} is E0's mean, {E0: 1, E6: -1} a difference, or on the log scale
a ratio. Replicates are the unit; the values here are on the scale of the effect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """`n`: replicates of the thinnest side. `low`, `high`, `error`, `freedom` are None where a side has one replicate or a value is infinite.
    `lowest`, `highest`: the effect's extremes over single replicates. `spread`: the largest range of one experiment's replicates; None: never seen."""

    value: float
    n: int
    low: float | None
    high: float | None
    error: float | None
    freedom: float | None
    lowest: float
    highest: float
    spread: float | None

    def p_value(self, threshold: float) -> float | None:
        """Two-sided, against the effect being exactly `threshold`."""
        if self.error is None or self.freedom is None:
            return None
        if self.error == 0.0:
            return 0.0
        t = (self.value - threshold) / self.error
        return _incomplete_beta(self.freedom / 2, 0.5, self.freedom / (self.freedom + t * t))


def estimate(weights: Mapping[str, float], samples: Mapping[str, Mapping[int, float]], *, paired: bool) -> Estimate | None:
    """The weighted sum over experiments. `samples[experiment][replicate]`; None where an experiment has no value.

    `paired`: replicate n of every experiment shares its seed, so that the sum is formed replicate by replicate.
    """
    if any(not samples.get(e) for e in weights):
        return None
    n = min(len(samples[e]) for e in weights)
    ranges = [max(samples[e].values()) - min(samples[e].values()) for e in weights if len(samples[e]) > 1]
    spread = max(ranges) if ranges else None
    common = set.intersection(*(set(samples[e]) for e in weights))
    if paired and len(common) == max(len(samples[e]) for e in weights):
        sums = [sum(w * samples[e][r] for e, w in weights.items()) for r in sorted(common)]
        value, error, freedom = _mean(sums), _standard_error(sums), float(len(sums) - 1)
        lowest, highest = min(sums), max(sums)
    else:
        value = sum(w * _mean(list(samples[e].values())) for e, w in weights.items())
        error, freedom = _welch([(w, list(samples[e].values())) for e, w in weights.items()])
        lowest = sum(min(w * x for x in samples[e].values()) for e, w in weights.items())
        highest = sum(max(w * x for x in samples[e].values()) for e, w in weights.items())
    if math.isnan(value):
        return None
    if not math.isfinite(value) or error is None:
        return Estimate(value, n, None, None, None, None, lowest, highest, spread)
    half = t_quantile(0.5 + CONFIDENCE / 2, freedom) * error if error else 0.0
    return Estimate(value, n, value - half, value + half, error, freedom, lowest, highest, spread)


def holm(p_values: Mapping[str, float], alpha: float = 1 - CONFIDENCE) -> set[str]:
    """The names whose p-value stands when all of them are tested together."""
    stands: set[str] = set()
    for rank, name in enumerate(sorted(p_values, key=lambda k: p_values[k])):
        if p_values[name] > alpha / (len(p_values) - rank):
            break
        stands.add(name)
    return stands


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else sum(values)


def _variance(values: Sequence[float]) -> float:
    """Sample variance; exactly 0 for values that differ by rounding only."""
    mean = _mean(values)
    if max(values) - min(values) <= 1e-12 * max(1.0, abs(mean)):
        return 0.0
    return math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)


def _standard_error(values: Sequence[float]) -> float | None:
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    return math.sqrt(_variance(values) / len(values))


def _welch(sides: Sequence[tuple[float, Sequence[float]]]) -> tuple[float | None, float]:
    """Standard error of the weighted sum of independent means, and Welch-Satterthwaite's degrees of freedom."""
    parts = []
    for weight, values in sides:
        if len(values) < 2 or not all(map(math.isfinite, values)):
            return None, 0.0
        parts.append((weight**2 * _variance(values) / len(values), len(values) - 1))
    total = math.fsum(v for v, _ in parts)
    if total == 0.0:
        return 0.0, float(min(f for _, f in parts))
    return math.sqrt(total), total**2 / math.fsum(v**2 / f for v, f in parts)


# Student's t ------------------------------------------------------------------------------------------------------


def t_cdf(t: float, freedom: float) -> float:
    """P(T <= t) of Student's t distribution."""
    tail = 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))
    return 1.0 - tail if t >= 0 else tail


def t_quantile(p: float, freedom: float) -> float:
    """The t with P(T <= t) = p, for 0 < p < 1, by bisection."""
    if p < 0.5:
        return -t_quantile(1.0 - p, freedom)
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < p:
        high *= 2.0
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_cdf(middle, freedom) < p else (low, middle)
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularized incomplete beta function I_x(a, b), by its continued fraction (Lentz's method)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side only
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    tiny = 1e-300
    c, d = 1.0, 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1), tiny)
    result = d
    for m in range(1, 1000):
        for step in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            d = 1.0 / _away_from_zero(1.0 + step * d, tiny)
            c = _away_from_zero(1.0 + step / c, tiny)
            result *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return front * result / a


def _away_from_zero(x: float, tiny: float) -> float:
    return x if abs(x) > tiny else tiny
