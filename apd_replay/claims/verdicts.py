"""From effects to a verdict: the rules of DESIGN.md, "Statistics", in one place.

A condition is met (or not met) where both sides have three replicates, every replicate lies on one side of the threshold, and the
interval is clear of it. With fewer replicates it is likely (or unlikely) where it lies beyond the largest spread seen between
replicates. Otherwise it is open and only leans.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from apd_replay.claims.evidence import SIMULATED, Measured
from apd_replay.claims.rules import Claim, Effect

LEAST_REPLICATES = 3


class State(Enum):
    MET = "met"
    NOT_MET = "not met"
    LIKELY = "likely met"
    UNLIKELY = "likely not met"
    OPEN = "open"
    MISSING = "no evidence"


@dataclass(frozen=True)
class Condition:
    """`leans`: on which side of the threshold the value lies (None: it is unknown). `because`: what keeps it open."""

    measured: Measured
    state: State
    leans: bool | None
    because: str = ""

    @property
    def effect(self) -> Effect:
        return self.measured.effect


@dataclass(frozen=True)
class Verdict:
    verdict: str
    leaning: str | None
    notes: tuple[str, ...]


def condition(measured: Measured, *, holm_stands: bool = True) -> Condition:
    """What one effect says about its threshold. `holm_stands`: its p-value stands among those of all claims."""
    effect, estimate = measured.effect, measured.estimate
    if estimate is None:
        return Condition(measured, State.MISSING, None, measured.missing)
    leans = _beyond(effect, estimate.value, measured.threshold)
    if estimate.n < LEAST_REPLICATES:
        return _with_few_replicates(measured, leans)
    if effect.over:
        if leans:
            return Condition(measured, State.MET, True)
        if effect.refuted_below is not None and (estimate.n < effect.refuted_from_n or estimate.value >= effect.refuted_below):
            return Condition(measured, State.OPEN, False, f"only below {_number(effect.refuted_below)} over {effect.refuted_from_n} replicates would refute it")
        return Condition(measured, State.NOT_MET, False)
    if estimate.low is None or estimate.high is None:
        return Condition(measured, State.OPEN, leans, "a replicate's value is infinite")
    sides = {_beyond(effect, v, measured.threshold) for v in (estimate.lowest, estimate.highest)}
    if effect.bound == "clear_of":
        clear = estimate.low > measured.threshold or estimate.high < measured.threshold
        one_side = estimate.lowest > measured.threshold or estimate.highest < measured.threshold
        if clear and one_side and holm_stands:
            return Condition(measured, State.MET, True)
        return Condition(measured, State.OPEN, leans, "not clear of no change")
    if len(sides) > 1:
        return Condition(measured, State.OPEN, leans, "replicates lie on both sides of the threshold")
    if {_beyond(effect, v, measured.threshold) for v in (estimate.low, estimate.high)} != sides:
        return Condition(measured, State.OPEN, leans, "the interval holds the threshold")
    if not holm_stands:
        return Condition(measured, State.OPEN, leans, "not clear of the threshold once all claims are tested together (Holm)")
    return Condition(measured, State.MET if leans else State.NOT_MET, leans)


def decide(claim: Claim, conditions: list[Condition], counters: list[Condition], engine: str) -> Verdict:
    """The verdict of a claim, with a note a condition that says what it found."""
    if claim.withdrawn:
        return Verdict("withdrawn", None, (claim.withdrawn,))
    notes = [note(c) for c in conditions] + [note(c) for c in counters if c.state in (State.NOT_MET, State.UNLIKELY)]
    if claim.engines and engine not in claim.engines:
        return Verdict("undecided", None, (f"decided on engine {' or '.join(claim.engines)} only", *notes))
    word = _word(claim, conditions, counters)
    leaning = _leaning(claim, conditions) if word in ("undecided", "provisional") else None
    if claim.assumed_by_simulator and engine in SIMULATED and word in ("holds", "refuted", "partly"):
        word, leaning = "provisional", _leaning(claim, conditions)
        notes.append("follows from the model: the simulator has this mechanism built in")
    notes += [claim.notes[k] for k in (word, "always") if k in claim.notes]
    return Verdict(word, leaning, tuple(notes))


def note(c: Condition) -> str:
    """`met: a session stays on one D (1 D, 95 % interval 1 to 1, N = 3)`."""
    estimate = c.measured.estimate
    if estimate is None:
        return f"{c.state.value}: {c.effect.says} ({c.because})"
    value = " ".join(filter(None, [_number(c.measured.shown(estimate.value)), c.measured.unit]))
    figures = [value]
    if estimate.low is not None:
        figures.append(f"95 % interval {_number(c.measured.shown(estimate.low))} to {_number(c.measured.shown(estimate.high))}")
    figures.append(f"N = {estimate.n}")
    return f"{c.state.value}: {c.effect.says} ({', '.join(figures)}" + (f"; {c.because})" if c.because else ")")


def _with_few_replicates(measured: Measured, leans: bool) -> Condition:
    estimate = measured.estimate
    assert estimate is not None
    why = f"it takes {LEAST_REPLICATES} on each side"
    if estimate.spread is None or measured.effect.over:
        return Condition(measured, State.OPEN, leans, f"{why}, and no spread between replicates was seen")
    if abs(estimate.value - measured.threshold) > estimate.spread:
        return Condition(measured, State.LIKELY if leans else State.UNLIKELY, leans, f"{why}; beyond the largest spread between replicates")
    return Condition(measured, State.OPEN, leans, f"{why}; within the spread between replicates")


def _word(claim: Claim, conditions: list[Condition], counters: list[Condition]) -> str:
    states = [c.state for c in conditions]
    if not states:
        return "undecided"
    if not claim.need_all:
        if State.MET in states:
            return "holds"
        return "refuted" if all(s is State.NOT_MET for s in states) else "undecided"
    if all(s is State.MET for s in states):
        return "partly" if any(c.state is State.NOT_MET for c in counters) else "holds"
    if all(s is State.NOT_MET for s in states):
        return "refuted"
    if State.MET in states:
        return "partly"
    return "provisional" if states[0] in (State.LIKELY, State.UNLIKELY) else "undecided"


def _leaning(claim: Claim, conditions: list[Condition]) -> str | None:
    """Where the primary metric points, or the first one that says anything; one is enough where one decides."""
    known = [c.leans for c in conditions if c.leans is not None]
    if not known:
        return None
    return "holds" if (known[0] if claim.need_all else any(known)) else "refuted"


def _beyond(effect: Effect, value: float, threshold: float) -> bool:
    match effect.bound:
        case "at_least":
            return value >= threshold
        case "at_most":
            return value <= threshold
        case "above":
            return value > threshold
        case "below":
            return value < threshold
        case _:
            return value != threshold


def _number(value: float | None) -> str:
    if value is None:
        return "unknown"
    return str(value) if not math.isfinite(value) else f"{value:.4g}" if abs(value) < 10000 else f"{value:.0f}"


def primary_p_values(conditions: Iterable[tuple[str, Condition]]) -> dict[str, float]:
    """p-values of the claims' primary metrics, where they have one; figures over all replicates stay outside Holm."""
    out = {}
    for claim, c in conditions:
        estimate = c.measured.estimate
        if estimate is not None and estimate.n >= LEAST_REPLICATES and not c.effect.over:
            p = estimate.p_value(c.measured.threshold)
            if p is not None:
                out[claim] = p
    return out
