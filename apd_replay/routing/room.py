"""What it would cost a D to take a session in, as far as the router can tell: in tokens, the one unit that prefill, eviction and queues share."""

from __future__ import annotations

from apd_replay.routing.view import Prompt, WorkerView

FRESH_S = 1.0
"""A D's own word on its free tokens counts this long; after that only the router's books do."""


def free_tokens(worker: WorkerView, now: float, but: str | None = None) -> int:
    """Free by the router's books: the pool, less what sessions keep there and what is under way; or by the D's own fresh word, if that is more
    (the books do not see evictions). The session `but` is not counted: its tokens make way for itself."""
    kept = sum(worker.resident.values()) - (worker.resident.get(but, 0) if but else 0)
    books = worker.pool_tokens - kept - worker.inflight_tokens
    load = worker.load
    if load is not None and load.available_tokens is not None and now - load.t <= FRESH_S:
        return max(books, load.available_tokens)
    return books


def shortfall_tokens(prompt: Prompt, worker: WorkerView, now: float) -> int:
    """Tokens of others that must be evicted for the prompt and its answer, and computed again when those come back."""
    return max(0, prompt.input_tokens + prompt.asked_output_tokens - free_tokens(worker, now, but=prompt.session))
