"""What a call to a worker costs: its own latency, idle and under load, and what it takes from the requests that decode there."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from apd_replay.cluster.calibrate.rows import Rows
from apd_replay.cluster.calibrate.traffic import Prompts, Reply, step_seconds
from apd_replay.errors import RunError
from apd_replay.replay.admission import ASK
from apd_replay.replay.client import Address, Client

if TYPE_CHECKING:
    from apd_replay.cluster.calibrate.pair import Pair

# SGLang's own call that waits for the scheduler, and the one that reads a snapshot in shared memory (read in 0.5.15.post1).
COUPLED, SNAPSHOT = "/server_info", "/v1/loads"
IDLE = 40
INTERVAL_S = 0.005  # a call answered at once would otherwise come thousands of times a second, and measure the HTTP server
CONTEXT, TOKENS = 2048, 200  # of each request that decodes meanwhile
D_CONTEXT = 1024  # a P works each of them out anew
LOADS = (0, 8, 32)

_QUESTION = json.dumps({"session": "calibrate", "rid": "calibrate", "input_tokens": 2048, "history_tokens": 1024, "appended_tokens": 1024, "output_tokens": 100, "output_reserve_tokens": 100})


async def measure(client: Client, to: Address, running: int, decode: Callable[[], Awaitable[float]], rows: Rows, say: Callable[[str], None]) -> None:
    """Each call that the server knows, one after the other. `decode` keeps `running` requests decoding and returns their step's seconds."""
    for path in (COUPLED, SNAPSHOT, ASK):
        if path == ASK and (await _call(client, to, ASK))[0] != 200:
            continue  # stock SGLang: the endpoint comes with this package's plugin
        if not running:
            for repeat in range(IDLE):
                status, seconds = await _call(client, to, path)
                rows.add("call", path=path, running=0, status=status, seconds=seconds, repeat=repeat)
            continue
        quiet = await decode()
        busy = asyncio.ensure_future(decode())
        taken: list[float] = []
        began = time.perf_counter()
        while not busy.done():
            status, seconds = await _call(client, to, path)
            if status != 200:
                raise RunError(f"{to.url}{path}: HTTP {status}")
            taken.append(seconds)
            await asyncio.sleep(max(0.0, INTERVAL_S - seconds))
        rate = len(taken) / (time.perf_counter() - began)
        step = await busy
        rows.add("calls", path=path, running=running, calls_per_s=rate, quiet_step_s=quiet, step_s=step, latencies_s=[round(t, 6) for t in taken])
        say(f"{path} while {running} decode: {sorted(taken)[len(taken) // 2] * 1000:.1f} ms, {rate:.0f}/s, step {quiet * 1000:.2f} -> {step * 1000:.2f} ms")


async def measure_on_decode(client: Client, pair: Pair, rows: Rows, seed: int, say: Callable[[str], None]) -> None:
    """The calls of a D, while requests that came through its P decode there. A load that fails is a row, not an error."""
    prompts = Prompts(seed, pair.decode.vocabulary)

    async def one() -> Reply:
        return (await pair.through(client, prompts.new(D_CONTEXT), TOKENS))[1]

    async def batch(running: int) -> float:
        step = step_seconds(await asyncio.gather(*(one() for _ in range(running))))
        if step is None:
            raise RunError("the requests never decoded all at once")
        return step

    for running in LOADS:
        if running > pair.decode.limits.running or running * (D_CONTEXT + TOKENS) > 0.9 * pair.pool_tokens:
            rows.add("skipped", what=f"calls while {running} requests decode", why="they do not fit the pools or the batch")
            continue
        try:
            await measure(client, pair.decode.address, running, partial(batch, running), rows, say)
        except RunError as error:
            rows.add("failed", what=f"calls while {running} requests decode", why=str(error))
            say(str(error))


async def _call(client: Client, to: Address, path: str) -> tuple[int, float]:
    began = time.perf_counter()
    response = await client.post(to, ASK, [_QUESTION.encode()]) if path == ASK else await client.get(to, path)
    return response.status, time.perf_counter() - began
