"""Workers in turn, whatever they hold: the plain choice, of a D and of a P."""

from __future__ import annotations

from apd_replay.routing.view import ClusterView, Prompt


class RoundRobin:
    """Every turn goes to the next worker."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, prompt: Prompt, view: ClusterView, home: int | None) -> int:
        self._next += 1
        return (self._next - 1) % len(view.decode)

    def rejected(self, prompt: Prompt, view: ClusterView, home: int) -> int:
        return home

    def sent(self, prompt: Prompt, worker: int) -> None:
        pass


class RoundRobinPrefill:
    """Every turn takes the next P, direct appends included, blind to the health of its link to the D (claim s5)."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, prompt: Prompt, view: ClusterView, decode: int) -> int:
        self._next += 1
        return (self._next - 1) % len(view.prefill)
