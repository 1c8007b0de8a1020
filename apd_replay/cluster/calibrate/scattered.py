"""KV into a D whose free slots lie scattered: SGLang sends one piece for each run of neighbouring slots, in each layer.

With pages of one token, requests that decode together take their slots by turns. One of two such requests leaves, and every second slot
of a stretch is free; the D is filled up, so that the next prompt must take them: as many runs as tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict

from apd_replay.cluster.calibrate.link import MIB, counted
from apd_replay.cluster.calibrate.pair import Pair
from apd_replay.cluster.calibrate.rows import Rows
from apd_replay.cluster.calibrate.traffic import Prompts
from apd_replay.replay.client import Client

ANSWER = 4000  # of each of two requests: about so many single free slots
PROMPT = 64
SPARE = 1500  # slots that stay free beside: SGLang reserves some for every request
SIZES = (2000, 3500)  # more than what is spare, so that the scattered ones are used
REPEATS = 3


async def measure(client: Client, pair: Pair, backend: str, rows: Rows, seed: int, say: Callable[[str], None]) -> None:
    """Needs a D with the plugin, pages of one token, and a pool that nobody else uses."""
    prompts = Prompts(seed, pair.prefill.vocabulary)
    filling = pair.decode.limits.pool_tokens - 2 * (ANSWER + PROMPT) - SPARE
    if pair.decode.facts.get("page_size") != 1 or filling < PROMPT or filling > pair.prefill.limits.pool_tokens:
        rows.add("skipped", what=f"scattered transfers over {backend}", why="needs pages of one token, and two equal pools that hold two answers")
        return
    async with pair.keeping(client, "calibrate-filling") as filler, pair.keeping(client, "calibrate-right") as right:
        async with pair.keeping(client, "calibrate-left") as left:
            await asyncio.gather(*(pair.through(client, prompts.new(PROMPT), ANSWER, side) for side in (left, right)))
            await pair.through(client, prompts.new(filling), 1, filler)
        for tokens in SIZES:
            for repeat in range(REPEATS):
                sent = await counted(client, pair, prompts.new(tokens))
                rows.add("scattered", backend=backend, tokens=tokens, **asdict(sent), repeat=repeat)
            say(f"{backend} {tokens} scattered: {sent.bytes / MIB:.0f} MiB in {sent.seconds * 1000:.2f} ms")
