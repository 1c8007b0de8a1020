"""Remedy F1: a new session goes where taking it in costs least, its overlap counted against what it displaces and what it waits for."""

from __future__ import annotations

from apd_replay.routing.overlap import Overlap
from apd_replay.routing.room import shortfall_tokens
from apd_replay.routing.view import ClusterView, Prompt, WorkerView


class CapacityAware:
    """Chooses by capacity, once: a session that has a home stays there (remedy F2 is what lets it leave).

    The cost of a D, in tokens: the part of the prompt that it has not been sent, plus what must be evicted to hold prompt and answer, plus
    the prompts queued for it (its own transfer and prealloc queues where it has said them, each as long as this prompt; what is under way by the
    router's books). Among equals the D with the fewest sessions, so that growth is spread as well.
    """

    def __init__(self, block_tokens: int | None) -> None:
        self._block_tokens = block_tokens or 0
        self._overlap = Overlap()

    def choose(self, prompt: Prompt, view: ClusterView, home: int | None) -> int:
        if home is not None:
            return home
        overlap = self._overlap.blocks(prompt, len(view.decode))

        def cost(d: int) -> tuple[int, int, int]:
            worker = view.decode[d]
            held = min(overlap[d] * self._block_tokens, prompt.input_tokens)
            total = prompt.input_tokens - held + shortfall_tokens(prompt, worker, view.now) + _queued_tokens(prompt, worker)
            return total, len(worker.resident) + worker.inflight, d

        return min(range(len(view.decode)), key=cost)

    def rejected(self, prompt: Prompt, view: ClusterView, home: int) -> int:
        return home

    def sent(self, prompt: Prompt, worker: int) -> None:
        self._overlap.sent(prompt, worker)


def _queued_tokens(prompt: Prompt, worker: WorkerView) -> int:
    load = worker.load
    said = (load.transfer_queue or 0) + (load.prealloc_queue or 0) + (load.retracted_queue or 0) if load else 0
    return max(worker.inflight_tokens, said * prompt.input_tokens)
