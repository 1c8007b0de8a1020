"""Which clock a log is written by. Worker lines carry local time without a zone, router lines UTC, some lines no time at all.

The offset of a log's clock from UTC is worked out from what it shares with something whose clock is known, and stated with its basis in
log_files (`clock_offset_s`, `clock_basis`); where there is nothing to compare with, that is what the basis says. Zones are multiples
of a quarter of an hour, so an offset is rounded to that.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from statistics import median

QUARTER_S = 900.0
_MATCH_S = 2.0
_WIDEST = 14 * 4  # no zone is further from UTC, in quarters


@dataclass(frozen=True, slots=True)
class Clock:
    """`offset_s`: the log's clock minus UTC; None where no line has a full time."""

    offset_s: float | None
    basis: str


@dataclass(slots=True)
class Evidence:
    """What a log offers. `shared`: (its stamp, UTC) of events that the client also saw; the others as in collect.Log."""

    role: str | None
    first_stamp: float | None
    last_stamp: float | None
    entry_gaps: list[float]
    served: list[float]
    shared: list[tuple[float, float]]


def decide(logs: dict[str, Evidence], window: tuple[float, float] | None = None) -> dict[str, Clock]:
    """A clock for every log of a run. `window`: start and end of the run, UTC epoch, where known."""
    clocks = {name: _alone(log) for name, log in logs.items()}
    router = sorted(stamp for log in logs.values() if log.role == "router" for stamp in log.served)
    for name, log in logs.items():
        if clocks[name] is None and (shift := matching_shift(log.served, router)) is not None:
            clocks[name] = Clock(shift[0], f"{shift[1]} requests that the router logged too")
    known = [c.offset_s for n, c in clocks.items() if c is not None and c.offset_s is not None and logs[n].role != "router"]
    # Of all logs together: a worker that fell idle early would look like one in another zone.
    last = max((log.last_stamp for log in logs.values() if log.last_stamp is not None and log.role != "router"), default=None)
    out: dict[str, Clock] = {}
    for name in logs:
        clock = clocks[name]
        if clock is None and known:
            clock = Clock(_quarter(median(known)), f"the run's other logs ({len(known)})")
        if clock is None and window is not None and last is not None:
            clock = Clock(_quarter(last - window[1]), "the last line of the run's logs against the end of the run")
        out[name] = clock or Clock(0.0, "nothing to compare with: taken as UTC")
    return out


def _alone(log: Evidence) -> Clock | None:
    """What the log says by itself, or with the client's records."""
    if log.first_stamp is None:
        return Clock(None, "no line has a full time")
    if log.role == "router":
        return Clock(0.0, "router lines are UTC")
    if log.entry_gaps:
        return Clock(_quarter(min(log.entry_gaps, key=abs)), f"entry times (UTC) of {len(log.entry_gaps)} requests")
    if log.shared:
        gap = median(own - utc for own, utc in log.shared)
        offset = _quarter(gap)
        return Clock(offset, f"{len(log.shared)} failed requests that the client saw too (median {gap - offset:+.1f} s beside the quarter hour)")
    return None


def matching_shift(stamps: list[float], reference: list[float]) -> tuple[float, int] | None:
    """The shift in quarters of an hour under which most stamps have a partner in sorted `reference`, and how many; None: not decided."""
    if not stamps or not reference:
        return None
    counts = []
    for quarters in range(-_WIDEST, _WIDEST + 1):
        shift = quarters * QUARTER_S
        counts.append((sum(_has_partner(stamp - shift, reference) for stamp in stamps), shift))
    counts.sort(reverse=True)
    (best, shift), (second, _) = counts[0], counts[1]
    return (shift, best) if best >= 3 and best >= 2 * second and 2 * best >= len(stamps) else None


def _has_partner(stamp: float, reference: list[float]) -> bool:
    at = bisect_left(reference, stamp - _MATCH_S)
    return at < len(reference) and reference[at] <= stamp + _MATCH_S


def _quarter(seconds: float) -> float:
    return round(seconds / QUARTER_S) * QUARTER_S + 0.0
