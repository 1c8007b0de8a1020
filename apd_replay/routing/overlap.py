"""Which workers were sent the leading blocks of a prompt."""

from __future__ import annotations

from apd_replay.routing.view import Prompt


class Overlap:
    """Remembers first turns only: a later turn's blocks only matter to sessions that share them from their start."""

    def __init__(self) -> None:
        self._holders: dict[int, set[int]] = {}

    def sent(self, prompt: Prompt, worker: int) -> None:
        if prompt.turn == 0:
            for block in prompt.hash_ids or ():
                self._holders.setdefault(block, set()).add(worker)

    def blocks(self, prompt: Prompt, workers: int) -> list[int]:
        """Leading blocks of the prompt that each worker has been sent."""
        overlap = [0] * workers
        holding: set[int] | None = None
        for block in prompt.hash_ids or ():
            here = self._holders.get(block)
            holding = here if holding is None else holding & here if here else None
            if not holding:
                break
            for worker in holding:
                overlap[worker] += 1
        return overlap
