"""A trace: sessions of turns. What the readers make, the statistics describe and the replay sends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session. Lengths in tokens; `hash_ids` name the prompt's blocks of `block_size` tokens (None: unknown)."""

    session: str
    turn: int
    arrival_s: float
    gap_s: float | None
    gap_kind: str | None
    input_tokens: int
    output_tokens: int
    shared_tokens: int | None = None
    hash_ids: tuple[int, ...] | None = None
    block_size: int | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """Turns in order; turn k + 1 never starts before turn k has ended."""

    id: str
    turns: tuple[Turn, ...]

    @property
    def peak_input(self) -> int:
        return max(t.input_tokens for t in self.turns)


@dataclass(frozen=True, slots=True)
class Trace:
    """`digest` is the sha256 of the content (the turns, not the file's bytes), so that gzip or a rewrite does not change it."""

    name: str
    digest: str
    sessions: tuple[Session, ...]

    @property
    def requests(self) -> int:
        return sum(len(s.turns) for s in self.sessions)


def shared_with_previous(before: Turn, turn: Turn) -> int | None:
    """How many tokens at the head of `turn`'s prompt repeat `before`'s prompt + answer.

    Block hashes decide where both turns have them; without them a prompt that did not shrink is taken as append-only,
    and one that did (context compaction) shares an unknown part: None.
    """
    history = before.input_tokens + before.output_tokens
    if before.hash_ids and turn.hash_ids and before.block_size == turn.block_size and turn.block_size:
        same = 0
        for a, b in zip(before.hash_ids, turn.hash_ids, strict=False):
            if a != b:
                break
            same += 1
        if same >= before.input_tokens // turn.block_size and turn.input_tokens >= before.input_tokens:
            return min(history, turn.input_tokens)
        return min(same * turn.block_size, turn.input_tokens)
    return history if turn.input_tokens >= history else None
