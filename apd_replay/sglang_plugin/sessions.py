"""Which agent sessions live on this decode worker, and what is kept of each: decisions only, no SGLang.

A session's slot is the part of its history whose KV this worker promises to keep, by a lock (`pin`) in SGLang's radix tree:

    COLD      open, nothing is kept: its next turn computes its history again
    IDLE      between two turns, the slot is kept; may be evicted
    ADMITTED  the next turn was told that it may come; the slot is kept for it until `expires_s`
    QUEUED    a direct turn waits to be scheduled, the slot is kept for it
    RUNNING   a turn is under way; SGLang's own request holds its KV, so that nothing needs to be kept here
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from apd_replay.replay.eviction import rank


class Stage(Enum):
    COLD = "cold"
    IDLE = "idle"
    ADMITTED = "admitted"
    QUEUED = "queued"
    RUNNING = "running"


@dataclass(slots=True)
class Session:
    """`tokens`: length of the history kept by `pin`; `reserved`: tokens set aside for the admitted turn; `requests`: ids under way;
    `direct_turns`: turns appended since its KV came. Times are time.monotonic."""

    id: str
    stage: Stage = Stage.COLD
    tokens: int = 0
    pin: Any = None
    used_s: float = 0.0
    reserved: int = 0
    expires_s: float = 0.0
    direct_turns: int = 0
    requests: set[str] = field(default_factory=set)
    closing: bool = False


class Sessions:
    """Every method that lets a slot go hands its pin back: the caller releases it. No method releases one by itself."""

    def __init__(self) -> None:
        self._open: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._open.values())

    def get(self, name: str) -> Session | None:
        return self._open.get(name)

    @property
    def held_tokens(self) -> int:
        """Tokens in slots; where sessions share a prefix, its tokens count for each of them."""
        return sum(s.tokens for s in self._open.values())

    def reserved_tokens(self, but: Session | None = None) -> int:
        return sum(s.reserved for s in self._open.values() if s is not but)

    # the life of a turn -----------------------------------------------------------------------------------------------

    def admit(self, session: Session, now: float, expires_s: float, reserve: int = 0) -> None:
        session.stage, session.expires_s, session.reserved, session.used_s = Stage.ADMITTED, now + expires_s, reserve, now

    def expire(self, now: float) -> list[Session]:
        """Admissions whose turn did not come in time become idle slots again, their reservation is void."""
        late = [s for s in self._open.values() if s.stage is Stage.ADMITTED and s.expires_s <= now]
        for session in late:
            session.stage, session.reserved = Stage.IDLE, 0
        return late

    def arrive(self, name: str, rid: str, *, direct: bool, now: float) -> tuple[Session, Any]:
        """A turn is here. One through P brings its KV along: the slot's pin is handed back, its tokens stay as ordinary cache."""
        session = self._open.get(name)
        if session is None:
            session = self._open[name] = Session(name)
        session.requests.add(rid)
        session.used_s = now
        if not direct:
            session.direct_turns = 0
            return session, self._let_go(session, Stage.RUNNING)
        if session.stage is not Stage.RUNNING:
            session.stage = Stage.QUEUED
        return session, None

    def scheduled(self, session: Session) -> Any:
        """The direct turn is in a batch: its request has its own lock now. Further chunks of it find no pin any more."""
        session.direct_turns += session.pin is not None
        return self._let_go(session, Stage.RUNNING)

    def ended(self, session: Session, rid: str, now: float) -> Any:
        """A request is over, whatever its end. Hands back a pin that has become pointless. While another of the session's requests
        is still under way the session stays as it is."""
        session.requests.discard(rid)
        session.used_s = now
        if session.requests:
            return None
        session.reserved = 0
        if session.closing:
            del self._open[session.id]
            return self._let_go(session, Stage.COLD)
        session.stage = Stage.IDLE if session.pin is not None else Stage.COLD
        return None

    def keep(self, session: Session, pin: Any, tokens: int) -> Any:
        """A slot for what the turn left; hands back the one it replaces. Only for a session without requests."""
        before, session.pin, session.tokens, session.stage = session.pin, pin, tokens, Stage.IDLE
        return before

    # slots that go ----------------------------------------------------------------------------------------------------

    def drop(self, session: Session) -> Any:
        """The slot is lost, the session stays: its next turn computes its history again."""
        session.direct_turns = 0
        return self._let_go(session, Stage.QUEUED if session.stage is Stage.QUEUED else Stage.COLD)

    def close(self, name: str) -> tuple[Session | None, Any]:
        """The session will not come back. A turn under way ends first; its KV is not kept."""
        session = self._open.get(name)
        if session is None:
            return None, None
        if session.requests:
            session.closing = True
            return session, None
        del self._open[name]
        return session, self._let_go(session, Stage.COLD)

    def victims(self, eviction: str, but: Session | None = None) -> list[Session]:
        """Who may lose its slot, first to go first: idle sessions in the order of replay/eviction.py. `tiered`: behind them the admitted ones
        whose turn has not come, oldest admission first (they are told by a lost slot).
        """
        idle = [s for s in self._open.values() if s.stage is Stage.IDLE and s is not but]
        idle.sort(key=lambda s: rank(eviction, s.direct_turns, s.used_s))
        if eviction == "idle_lru":
            return idle
        admitted = [s for s in self._open.values() if s.stage is Stage.ADMITTED and s is not but]
        return idle + sorted(admitted, key=lambda s: s.used_s)

    def _let_go(self, session: Session, stage: Stage) -> Any:
        pin, session.pin, session.tokens, session.reserved, session.stage = session.pin, None, 0, 0, stage
        return pin
