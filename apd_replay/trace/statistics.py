"""What a trace is like, in figures. Unknown is None, never 0; quantiles are interpolated linearly."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import floor
from typing import Any

from apd_replay.trace.model import Session, Trace

QUANTILES = {"p10": 0.10, "p50": 0.50, "p90": 0.90, "p99": 0.99, "max": 1.0}
CONTEXTS = (32_768, 131_072, 262_144)
TIME_SCALES = (1.0, 10.0)


def quantile(ascending: Sequence[float], q: float) -> float | None:
    """Linear interpolation between the two nearest ranks; None without values."""
    if not ascending:
        return None
    rank = q * (len(ascending) - 1)
    low = floor(rank)
    high = min(low + 1, len(ascending) - 1)
    return float(ascending[low] + (rank - low) * (ascending[high] - ascending[low]))


def quantiles(values: Sequence[float]) -> dict[str, float | None]:
    ascending = sorted(values)
    return {name: quantile(ascending, q) for name, q in QUANTILES.items()}


def statistics(trace: Trace) -> dict[str, Any]:
    """All figures by name, ready for JSON. Lengths in tokens, times in seconds.

    shorter_than_history: turns whose prompt is shorter than the previous prompt + answer; prompt_shrinks: shorter than the
    previous prompt (context compaction). over_context: requests whose prompt + answer exceed that context.
    idle_share: gaps over the time from first to last send, for sessions whose gaps leave service time out.
    """
    turns = [t for s in trace.sessions for t in s.turns]
    pairs = [pair for s in trace.sessions for pair in pairwise(s.turns)]
    gaps = [t.gap_s for t in turns if t.gap_s is not None]
    return {
        "trace": trace.name,
        "digest": trace.digest,
        "requests": len(turns),
        "sessions": len(trace.sessions),
        "turns_per_session": quantiles([len(s.turns) for s in trace.sessions]),
        "span_s": max(t.arrival_s for t in turns),
        "gaps": len(gaps),
        "gaps_arrival": sum(t.gap_kind == "arrival" for t in turns),
        "gap_s": quantiles(gaps),
        "idle_share": idle_share(trace.sessions),
        "input_tokens": sum(t.input_tokens for t in turns),
        "prompt_tokens": quantiles([t.input_tokens for t in turns]),
        "peak_tokens": quantiles([s.peak_input for s in trace.sessions]),
        "output_tokens": sum(t.output_tokens for t in turns),
        "answer_tokens": quantiles([t.output_tokens for t in turns]),
        "zero_outputs": sum(t.output_tokens == 0 for t in turns),
        "without_hash_ids": sum(t.hash_ids is None for t in turns),
        "shared_unknown": sum(t.shared_tokens is None for _, t in pairs),
        "shorter_than_history": sum(t.input_tokens < before.input_tokens + before.output_tokens for before, t in pairs),
        "prompt_shrinks": sum(t.input_tokens < before.input_tokens for before, t in pairs),
        "over_context": {str(limit): sum(t.input_tokens + t.output_tokens > limit for t in turns) for limit in CONTEXTS},
        "replay_s": {f"{scale:g}": expected_replay_s(trace, scale) for scale in TIME_SCALES},
    }


def idle_share(sessions: Sequence[Session]) -> float | None:
    """None where every gap is a difference of sends, or where the trace has no service time that could be told from it."""
    timed = [s for s in sessions if len(s.turns) > 1 and all(t.gap_kind == "think" for t in s.turns[1:])]
    span = sum(s.turns[-1].arrival_s - s.turns[0].arrival_s for s in timed)
    idle = sum(t.gap_s or 0.0 for s in timed for t in s.turns)
    return idle / span if span - idle > 1e-6 * span else None


def expected_replay_s(trace: Trace, time_scale: float) -> float:
    """When the last turn is due if answers took no time: the shortest that a replay at this time scale can be."""
    origin = min((s.turns[0].arrival_s for s in trace.sessions), default=0.0)
    return max((s.turns[0].arrival_s - origin + sum(t.gap_s or 0.0 for t in s.turns)) / time_scale for s in trace.sessions)
