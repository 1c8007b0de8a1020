"""A prompt as a policy sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Turn:
    session: str = "a"
    turn: int = 0
    input_tokens: int = 1000
    asked_output_tokens: int = 10
    hash_ids: tuple[int, ...] | None = None
    shared_tokens: int | None = None
