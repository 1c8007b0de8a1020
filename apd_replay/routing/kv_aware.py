"""The design under test: a session goes to the D that holds most of its prompt, and stays there for ever."""

from __future__ import annotations

from apd_replay.routing.view import ClusterView, Prompt


class KvAware:
    """Scores D's by hash overlap alone, blind to capacity (claim s1); ties rotate. A session that has a home never leaves it."""

    def __init__(self) -> None:
        self._holders: dict[int, set[int]] = {}
        self._turn = 0

    def choose(self, prompt: Prompt, view: ClusterView, home: int | None) -> int:
        if home is not None:
            return home
        overlap = self._overlap(prompt, len(view.decode))
        best = max(overlap)
        candidates = [d for d, blocks in enumerate(overlap) if blocks == best]
        self._turn += 1
        return candidates[(self._turn - 1) % len(candidates)]

    def rejected(self, prompt: Prompt, view: ClusterView, home: int) -> int:
        return home

    def sent(self, prompt: Prompt, worker: int) -> None:
        if prompt.turn == 0:  # a later turn's blocks only matter to sessions that share them from their start
            for block in prompt.hash_ids or ():
                self._holders.setdefault(block, set()).add(worker)

    def _overlap(self, prompt: Prompt, workers: int) -> list[int]:
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
