"""Which session does a prompt continue, and how much of it has been seen? From the tokens alone, where the client does not name the session."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass, field

BYTES_PER_TOKEN = 4  # array('i')
LEAST_TOKENS = 16  # a shorter prompt continues nothing
LOOKED_AT = 16  # sessions compared with a prompt whose head they share
MOST_BYTES = 256 * 1024 * 1024  # of histories kept; the longest unused go


@dataclass(slots=True)
class _History:
    """`tokens`: the last prompt and, once it is there, its answer. `heads`: under which keys the session is found."""

    tokens: bytes
    turns: int = 0
    heads: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a prompt stands: turn `turn` (from 0) of `session`, its first `history_tokens` seen before."""

    session: str
    turn: int
    history_tokens: int


class Histories:
    """A session is found by the head of its history, hashed at every power of two; a prompt continues it if it repeats more than half of it.
    So sessions that share a system prompt stay apart, unless they share more than they differ in."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _History] = OrderedDict()
        self._sessions_of: dict[tuple[int, int], dict[str, None]] = {}
        self._bytes = 0

    def take(self, prompt: array[int], named: str | None, otherwise: str) -> Place:
        """The prompt's place; it is the session's history from here on. `otherwise`: the name of a session that begins with it."""
        tokens = prompt.tobytes()
        session = named if named is not None else self._continued(tokens)
        known = self._known.get(session) if session is not None else None
        if session is None or known is None:
            session = session or otherwise
            self._keep(session, tokens, 1)
            return Place(session, 0, 0)
        shared = _common_bytes(tokens, known.tokens) // BYTES_PER_TOKEN
        turn = known.turns
        self._keep(session, tokens, turn + 1)
        return Place(session, turn, shared)

    def of(self, session: str) -> array[int]:
        """The session's tokens so far; none where it is not known."""
        out = array("i")
        if session in self._known:
            out.frombytes(self._known[session].tokens)
        return out

    def answered(self, session: str, prompt: array[int], output: array[int]) -> None:
        known = self._known.get(session)
        if known is not None:
            self._keep(session, prompt.tobytes() + output.tobytes(), known.turns)

    def forget(self, session: str) -> None:
        known = self._known.pop(session, None)
        if known is not None:
            self._bytes -= len(known.tokens)
            for key in known.heads:
                found = self._sessions_of[key]
                del found[session]
                if not found:
                    del self._sessions_of[key]

    def _keep(self, session: str, tokens: bytes, turns: int) -> None:
        self.forget(session)
        heads = _heads(tokens)
        self._known[session] = _History(tokens, turns, heads)
        self._bytes += len(tokens)
        for key in heads:
            self._sessions_of.setdefault(key, {})[session] = None
        while self._bytes > MOST_BYTES and len(self._known) > 1:
            self.forget(next(iter(self._known)))

    def _continued(self, tokens: bytes) -> str | None:
        for key in reversed(_heads(tokens)):
            sessions = self._sessions_of.get(key)
            if not sessions:
                continue
            best, most = None, 0
            for _, session in zip(range(LOOKED_AT), reversed(sessions), strict=False):
                history = self._known[session].tokens
                shared = _common_bytes(tokens, history)
                if shared > most and 2 * shared > len(history):
                    best, most = session, shared
            return best
        return None


def _heads(tokens: bytes) -> list[tuple[int, int]]:
    """(length, hash) of the heads of 16, 32, 64 ... tokens."""
    out, length = [], LEAST_TOKENS * BYTES_PER_TOKEN
    while length <= len(tokens):
        out.append((length, hash(tokens[:length])))
        length *= 2
    return out


def _common_bytes(a: bytes, b: bytes) -> int:
    """Length of the common head, in whole tokens."""
    low, high = 0, min(len(a), len(b)) // BYTES_PER_TOKEN  # the first `low` tokens are the same, more than `high` are not
    if a[: high * BYTES_PER_TOKEN] == b[: high * BYTES_PER_TOKEN]:
        return high * BYTES_PER_TOKEN
    while high - low > 1:
        middle = (low + high) // 2
        if a[low * BYTES_PER_TOKEN : middle * BYTES_PER_TOKEN] == b[low * BYTES_PER_TOKEN : middle * BYTES_PER_TOKEN]:
            low = middle
        else:
            high = middle
    return low * BYTES_PER_TOKEN
