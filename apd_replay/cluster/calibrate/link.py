"""KV from a P to a D, one prompt at a time on an idle pair: how much, how long.

The duration is the P's own: the difference that one request makes to its counters of transfer time and size (/metrics), which
needs --enable-metrics there. SGLang counts a prompt of several chunks from a different moment in each backend, so only
prompts of one chunk are sent.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable

from apd_replay.cluster.calibrate.rows import Rows
from apd_replay.cluster.calibrate.traffic import Prompts, generate
from apd_replay.cluster.calibrate.worker import Server
from apd_replay.errors import RunError
from apd_replay.replay.client import Client

SIZES = (512, 1024, 2048, 4096, 8192)
REPEATS = 5  # the first of each size sets buffers up; fit.py leaves it out
OUTPUT_TOKENS = 4
MIB = 1 << 20
_LATENCY, _SIZE = "sglang:kv_transfer_latency_ms_sum", "sglang:kv_transfer_total_mb_sum"


async def measure(client: Client, prefill: Server, decode: Server, bootstrap_port: int, backend: str, rows: Rows, seed: int, say: Callable[[str], None]) -> None:
    """All sizes that fit one chunk of the P and the pools. Raises RunError where the P does not count its transfers."""
    prompts = Prompts(seed, prefill.vocabulary)
    rooms = random.Random(seed)
    limit = min(int(prefill.facts["chunk_tokens"] or 8192), *(int(0.9 * s.limits.pool_tokens) for s in (prefill, decode)))
    for tokens in SIZES:
        if tokens > limit:
            rows.add("skipped", what=f"transfer of {tokens} tokens over {backend}", why=f"{limit} tokens are a chunk, or fit the pools")
            continue
        for repeat in range(REPEATS):
            ids = prompts.new(tokens)
            bootstrap = {"bootstrap_host": prefill.address.host, "bootstrap_port": bootstrap_port, "bootstrap_room": rooms.getrandbits(62)}
            before = await _counters(client, prefill)
            first, second = await asyncio.gather(
                generate(client, prefill.address, ids, OUTPUT_TOKENS, bootstrap), generate(client, decode.address, ids, OUTPUT_TOKENS, bootstrap)
            )
            if second.error:  # what P answers in its stream differs between versions; D's tokens are the proof
                rows.add("failed", what=f"transfer of {tokens} tokens over {backend}", why=second.error)
                say(f"{backend} {tokens}: {second.error}")
                return
            after = await _counters_past(client, prefill, before)
            seconds, moved = (after[0] - before[0]) / 1000, round((after[1] - before[1]) * MIB)
            rows.add("transfer", backend=backend, tokens=tokens, bytes=moved, seconds=seconds, first_s=second.first_s, prefill_s=first.seconds, repeat=repeat)
        say(f"{backend} {tokens}: {moved / MIB:.0f} MiB in {seconds * 1000:.2f} ms, first token after {(second.first_s or 0) * 1000:.0f} ms")


async def _counters(client: Client, prefill: Server) -> tuple[float, float]:
    """Milliseconds and MiB of all transfers so far; 0 before the first."""
    response = await client.get(prefill.address, "/metrics")
    if response.status != 200:
        raise RunError(f"{prefill.address.url}/metrics: HTTP {response.status}; start the P with --enable-metrics")
    text = response.body.decode()
    latency, size = (sum(float(v) for v in re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)) for name in (_LATENCY, _SIZE))
    return latency, size


async def _counters_past(client: Client, prefill: Server, before: tuple[float, float]) -> tuple[float, float]:
    """The counters once the request is in them: P writes them after it has answered."""
    for _ in range(40):
        after = await _counters(client, prefill)
        if after[1] > before[1]:
            return after
        await asyncio.sleep(0.05)
    raise RunError(f"{prefill.address.url}/metrics: a transfer took place that {_SIZE} does not count")
