"""Two experiments against each other, by the same metrics and the same statistics as the claims (`apd compare`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import duckdb

from apd_replay.claims import fairness
from apd_replay.claims.deciding import casting, facts_of, runs_of
from apd_replay.claims.evidence import Cast, Evidence, Row, gather
from apd_replay.claims.rules import Effect, Rules
from apd_replay.claims.verdicts import State, condition
from apd_replay.errors import ApdError

_DIFFERENCES = {"errors": "error_rate"}  # compared as a difference of rates: the baseline may have none
_STEPS = ("error_rate", "failure_rate", "gap_distortion")  # on the way to a figure, or about a run and its trace only
_WORDS = {State.MET: "differs", State.LIKELY: "differs, provisional", State.UNLIKELY: "differs, provisional"}


@dataclass(frozen=True)
class Line:
    """One metric of A against B. `difference`, `low`, `high`: a ratio A / B, or for rates and shares A - B."""

    claim: str
    metric: str
    unit: str
    a: float
    b: float
    is_ratio: bool
    difference: float
    low: float | None
    high: float | None
    n: tuple[int, int]
    word: str


@dataclass(frozen=True)
class Compared:
    lines: list[Line]
    confounders: tuple[str, ...]
    paired: bool


def compare(connection: duckdb.DuckDBPyConnection, rules: Rules, a: str, b: str) -> Compared:
    """Every figure of a whole run that both experiments have, claim by claim, the headline first. Raises ApdError where it must not be compared."""
    runs = [r for r in runs_of(connection) if r["status"] != "failed"]
    known = dict.fromkeys(r["experiment"] for r in runs)
    for name in (a, b):
        if name not in known:
            raise ApdError(f"no run of experiment {name}; there are: {', '.join(known) or 'none'}")
    facts = facts_of(runs)
    comparison = fairness.compare([*facts[a], *facts[b]])
    if comparison.refused:
        raise ApdError(f"{a} against {b}: {comparison.refused}")
    cast = _cast(a, b, [c for c in casting(runs) if {a, b} & c.seeds.keys()])
    order = sorted((c for c in rules.claims if not c.withdrawn), key=lambda c: c.id != "headline")
    lines, seen = [], set()
    for claim in order:
        rows = [r for r in gather(connection, claim.id) if r.experiment in (a, b)]
        for metric, unit in dict.fromkeys((r.metric, r.unit or "") for r in rows if r.replicate is not None and r.scope is None and r.metric not in _STEPS):
            line = None if metric in seen else _line(claim.id, metric, unit, rows, cast)
            if line is not None:
                lines.append(line)
                seen.add(metric)
    return Compared(lines, (*comparison.confounders, *_differences(runs, a, b)), cast.paired([a, b]))


def _cast(a: str, b: str, casts: list[Cast]) -> Cast:
    """Both under their own ids; simulated runs stay paired only where both are of one engine."""
    engines = {c.engine for c in casts}
    seeds = {e: s for c in casts for e, s in c.seeds.items() if e in (a, b)}
    return Cast(engines.pop() if len(engines) == 1 else "", "", {a: a, b: b}, seeds, {})


def _line(claim: str, metric: str, unit: str, rows: list[Row], cast: Cast) -> Line | None:
    a, b = cast.parts
    means = {e: _mean([r.value for r in rows if r.metric == metric and r.experiment == e and r.replicate is not None and r.scope is None]) for e in (a, b)}
    if means[a] is None or means[b] is None:
        return None
    of = _DIFFERENCES.get(metric, metric)
    is_ratio = of == metric and not unit.startswith("of ") and all(r.value > 0 for r in rows if r.metric == metric and r.scope is None)
    effect = Effect(of, metric, {a: 1, b: -1}, metric, log=is_ratio, bound="clear_of", threshold=1.0 if is_ratio else 0.0)
    measured = Evidence(rows, cast).measure(effect)
    estimate = measured.estimate
    if estimate is None:
        return None
    difference = measured.shown(estimate.value)
    assert difference is not None
    count = {e: len({r.replicate for r in rows if r.metric == metric and r.experiment == e and r.replicate is not None}) for e in (a, b)}
    return Line(claim, metric, unit, means[a] or 0.0, means[b] or 0.0, is_ratio, difference, measured.shown(estimate.low), measured.shown(estimate.high),
                (count[a], count[b]), _WORDS.get(condition(measured).state, "undecided"))  # fmt: skip


def _mean(values: list[float]) -> float | None:
    if not values:
        return None
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.inf


def _differences(runs: list[dict[str, object]], a: str, b: str) -> list[str]:
    """Settings in which the two experiments differ: any of them could be the cause."""
    out = []
    for key in ("engine", "trace", "hardware", "cluster", "policy", "time_scale", "concurrency", "model"):
        sides = [sorted({str(r[key]) for r in runs if r["experiment"] == e}) for e in (a, b)]
        if sides[0] != sides[1]:
            out.append(f"{key}: {', '.join(sides[0])} against {', '.join(sides[1])}")
    return out
