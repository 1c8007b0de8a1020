"""Which points are measured: short ones of every kind first, so that a deadline leaves a file that can still be fitted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

DECODE_TOKENS = 130  # of which the first few fill the batch
REPEATS = 3


class Prefill(NamedTuple):
    """One prompt of `new` tokens behind `cached` ones, `repeats` times."""

    cached: int
    new: int
    repeats: int = REPEATS


class Decode(NamedTuple):
    """`batch` requests decode together, each at `context` tokens."""

    context: int
    batch: int


class Calls(NamedTuple):
    """Calls to the scheduler while `running` requests decode."""

    running: int


Point = Prefill | Decode | Calls


@dataclass(frozen=True)
class Limits:
    """What a server can hold."""

    pool_tokens: int
    context_tokens: int
    running: int


def plan() -> Iterator[Point]:
    for new in (256, 512, 1024, 2048, 4096, 8192, 16384):
        yield Prefill(0, new)
    yield from (Decode(2048, batch) for batch in (1, 2, 4, 8, 16, 32))
    yield from (Calls(running) for running in (0, 8, 32))
    for cached in (8192, 32768):
        yield from (Prefill(cached, new) for new in (128, 512, 2048, 8192))
    yield from (Decode(16384, batch) for batch in (1, 4, 8, 16, 32))
    yield Prefill(0, 32768)
    yield Prefill(0, 65536, 2)
    yield from (Prefill(65536, new) for new in (128, 512, 2048, 8192))
    yield from (Decode(65536, batch) for batch in (1, 4, 8))
    yield Prefill(0, 131072, 1)
    yield from (Prefill(131072, new) for new in (128, 512, 2048, 8192))


def misfit(point: Point, limits: Limits) -> str | None:
    """Why the server cannot hold `point`, or None."""
    match point:
        case Prefill(cached, new):
            tokens, longest, running = cached + new, cached + new, 1
        case Decode(context, batch):
            tokens, longest, running = batch * (context + DECODE_TOKENS), context + DECODE_TOKENS, batch
        case Calls(running):
            tokens, longest = running * 2 * 2048, 2 * 2048
    if tokens > 0.95 * limits.pool_tokens:
        return f"{tokens} tokens of KV, the pool has {limits.pool_tokens}"
    if longest >= limits.context_tokens:
        return f"{longest} tokens of context, the model has {limits.context_tokens}"
    if running > limits.running:
        return f"{running} running requests, the server allows {limits.running}"
    return None
