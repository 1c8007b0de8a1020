"""A direct append: a D with the plugin computes a turn's new tokens itself. One turn at a time, until its first token at the client."""

from __future__ import annotations

from collections.abc import Callable

from apd_replay.cluster.calibrate.pair import Pair
from apd_replay.cluster.calibrate.rows import Rows
from apd_replay.cluster.calibrate.traffic import Prompts
from apd_replay.replay.client import Client

HISTORIES = (1024, 8192, 20480)
NEW = (16, 64, 256, 1024, 4096)
REPEATS = 4  # the first of each length chooses and compiles kernels; fit.py leaves it out
OUTPUT_TOKENS = 2


async def measure(client: Client, pair: Pair, rows: Rows, seed: int, say: Callable[[str], None]) -> None:
    """What does not fit the pools is a row of its own. A session is seeded through P once, and appended to from there."""
    prompts = Prompts(seed, pair.decode.vocabulary)
    for history in HISTORIES:
        if history + REPEATS * sum(NEW) > 0.9 * pair.pool_tokens:
            rows.add("skipped", what=f"appends behind {history} tokens", why="they do not fit the pools")
            continue
        ids = prompts.new(history)
        async with pair.keeping(client, f"calibrate-{history}") as session:
            await pair.through(client, ids, OUTPUT_TOKENS, session)
            for new in NEW:
                for repeat in range(REPEATS):
                    ids = [*ids, *prompts.new(new)]
                    reply = await pair.append(client, ids, OUTPUT_TOKENS, session)
                    rows.add("append", new=len(ids) - reply.cached, cached=reply.cached, seconds=reply.first_s, repeat=repeat)
                say(f"append {new} behind {reply.cached}: {(reply.first_s or 0) * 1000:.1f} ms")
