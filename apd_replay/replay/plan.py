"""A trace and an experiment's settings become what one run will send: sessions with start times, turns with scaled gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import overload

from apd_replay.configuration import Experiment
from apd_replay.errors import RunError
from apd_replay.replay.core import PlannedSession, Request
from apd_replay.trace.model import Session, Trace, Turn


@dataclass(frozen=True, slots=True)
class Plan:
    """`over_context` counts the turns left out because prompt + answer exceed the context."""

    sessions: tuple[PlannedSession, ...]
    over_context: int
    expected_span_s: float  # the longest session's gaps and the last start, service time not counted

    @property
    def requests(self) -> int:
        return sum(len(s.requests) for s in self.sessions)


def plan(trace: Trace, experiment: Experiment, replicate: int) -> Plan:
    """Replicate n draws its start offsets from seed n, keyed by session: the same offsets in every experiment."""
    sessions, over, span = [], 0, 0.0
    chosen = trace.sessions[: experiment["first_sessions"]]
    scaled = Gaps(experiment["gap_cap_s"], experiment.gap_scale)
    origin = min((s.turns[0].arrival_s for s in chosen), default=0.0)
    for session in chosen:
        turns = session.turns[: experiment["first_turns"]]
        kept = _within_context(turns, experiment, session)
        over += len(turns) - len(kept)
        if not kept:
            continue
        spread = experiment["start_spread_s"]
        offset = Random(f"start:{replicate}:{session.id}").uniform(0.0, spread) if spread else 0.0
        start = (kept[0].arrival_s - origin) / experiment.arrival_scale + offset
        sessions.append(PlannedSession(session.id, start, Requests(kept, scaled)))
        span = max(span, start + sum(map(scaled.of, kept)))
    return Plan(tuple(sessions), over, span)


def _within_context(turns: tuple[Turn, ...], experiment: Experiment, session: Session) -> tuple[Turn, ...]:
    limit = experiment.cluster["context_tokens"]
    for k, turn in enumerate(turns):
        if turn.input_tokens + turn.output_tokens > limit:
            if experiment["over_context"] == "fail":
                raise RunError(f"session {session.id} turn {turn.turn} needs {turn.input_tokens + turn.output_tokens} tokens, more than context_tokens = "
                               f"{limit}; set over_context: end_session to end such sessions there")
            return turns[:k]
    return turns


@dataclass(frozen=True, slots=True)
class Gaps:
    """The gap before a turn as the run will wait it: capped, then scaled; nothing before a first turn."""

    cap_s: float | None
    scale: float

    def of(self, turn: Turn) -> float:
        gap = max(0.0, turn.gap_s or 0.0)
        return (gap if self.cap_s is None else min(gap, self.cap_s)) / self.scale


class Requests(Sequence[Request]):
    """A session's requests, each made when it is asked for: a long run holds only those under way."""

    __slots__ = ("_gaps", "_turns")

    def __init__(self, turns: Sequence[Turn], gaps: Gaps) -> None:
        self._turns, self._gaps = turns, gaps

    def __len__(self) -> int:
        return len(self._turns)

    @overload
    def __getitem__(self, k: int) -> Request: ...
    @overload
    def __getitem__(self, k: slice) -> Sequence[Request]: ...
    def __getitem__(self, k: int | slice) -> Request | Sequence[Request]:
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(len(self)))]
        turn = self._turns[k]
        return Request(id=f"{turn.session}-{turn.turn}", session=turn.session, turn=turn.turn, input_tokens=turn.input_tokens,
                       asked_output_tokens=max(1, turn.output_tokens), shared_tokens=turn.shared_tokens, hash_ids=turn.hash_ids,
                       gap_s=self._gaps.of(turn))
