"""How long a D asks the replay to hold back, in milliseconds. `linear` and `composite` are the seed documents'; `drain` is ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp

DEPTH_THRESHOLD = 8
LONGEST_MS = 2000.0


def linear(transfer_queue: int) -> float:
    """Grows with the transfer queue, silent below a depth of eight."""
    return 0.0 if transfer_queue < DEPTH_THRESHOLD else min(LONGEST_MS, 100.0 * transfer_queue)


def composite(transfer_queue: int, retracted_queue: int, usage_after: float, *, overshoot_per_usage: float) -> float:
    """Retraction first, then memory, then the transfer queue.

    `usage_after` is the pool's usage (0 to 1) once the append is in. The seeds multiply an 'overshoot' by five without giving
    its unit; `overshoot_per_usage` is the number of overshoot units in a usage of 1 above 0.90, a setting marked as a guess.
    """
    if retracted_queue:
        return 1500.0
    if usage_after >= 0.90:
        return max(200.0, min(LONGEST_MS, (usage_after - 0.90) * overshoot_per_usage * 5.0))
    return linear(transfer_queue)


DRAIN_SPAN_S = 30.0
LONGEST_DRAIN_MS = 10_000.0


def drain(short_tokens: int, drained_tokens_per_s: float) -> float:
    """Until the pool has emptied by what is missing, at the rate at which sessions lately left it; at least 100 ms, so that asking costs little."""
    if short_tokens <= 0:
        return 0.0
    if drained_tokens_per_s <= 0.0:
        return LONGEST_DRAIN_MS
    return max(100.0, min(LONGEST_DRAIN_MS, 1000.0 * short_tokens / drained_tokens_per_s))


class DrainMeter:
    """Tokens a second that sessions left behind for good when they ended or moved away, over about the last DRAIN_SPAN_S seconds."""

    __slots__ = ("_level", "_t")

    def __init__(self) -> None:
        self._level = self._t = 0.0

    def left(self, now: float, tokens: int) -> None:
        self._level = self._level * exp((self._t - now) / DRAIN_SPAN_S) + tokens
        self._t = now

    def rate(self, now: float) -> float:
        return self._level * exp((self._t - now) / DRAIN_SPAN_S) / DRAIN_SPAN_S


@dataclass(frozen=True, slots=True)
class Pressure:
    """A D at the moment it answers. `usage_after`: pool usage (0 to 1) with the append; `short_tokens`: what is missing to hold the session
    without evicting another."""

    transfer_queue: int
    retracted_queue: int
    usage_after: float
    short_tokens: int = 0
    drained_tokens_per_s: float = 0.0


def formula(name: str, overshoot_per_usage: float) -> Callable[[Pressure], float]:
    """The hint that an experiment's `backpressure` names; `off` never asks for a pause."""
    if name == "linear":
        return lambda d: linear(d.transfer_queue)
    if name == "composite":
        return lambda d: composite(d.transfer_queue, d.retracted_queue, d.usage_after, overshoot_per_usage=overshoot_per_usage)
    if name == "drain":
        return lambda d: drain(d.short_tokens, d.drained_tokens_per_s)
    return lambda d: 0.0
