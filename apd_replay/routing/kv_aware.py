"""The design under test: a session goes to the D that holds most of its prompt, and stays there for ever."""

from __future__ import annotations

from apd_replay.routing.overlap import Overlap
from apd_replay.routing.view import ClusterView, Prompt


class KvAware:
    """Scores D's by hash overlap alone, blind to capacity (claim s1); ties rotate. A session that has a home never leaves it."""

    def __init__(self) -> None:
        self._overlap = Overlap()
        self._turn = 0

    def choose(self, prompt: Prompt, view: ClusterView, home: int | None) -> int:
        if home is not None:
            return home
        overlap = self._overlap.blocks(prompt, len(view.decode))
        best = max(overlap)
        candidates = [d for d, blocks in enumerate(overlap) if blocks == best]
        self._turn += 1
        return candidates[(self._turn - 1) % len(candidates)]

    def rejected(self, prompt: Prompt, view: ClusterView, home: int) -> int:
        return home

    def sent(self, prompt: Prompt, worker: int) -> None:
        self._overlap.sent(prompt, worker)
