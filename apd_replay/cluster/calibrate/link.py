"""KV from a P to a D, one prompt at a time on an idle pair: how much, how long.

The duration is the P's own: the difference that one request makes to its counters of transfer time and size (/metrics), which
needs --enable-metrics there. SGLang counts a prompt of several chunks from a different moment in each backend, so only
prompts of one chunk are sent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass

from apd_replay.cluster.calibrate.pair import NoAnswer, Pair
from apd_replay.cluster.calibrate.rows import Rows
from apd_replay.cluster.calibrate.traffic import Prompts
from apd_replay.cluster.calibrate.worker import Server
from apd_replay.errors import RunError
from apd_replay.replay.client import Client

SIZES = (512, 1024, 2048, 4096, 8192)
REPEATS = 5  # the first of each size sets buffers up; fit.py leaves it out
OUTPUT_TOKENS = 4
MIB = 1 << 20
_LATENCY, _SIZE = "sglang:kv_transfer_latency_ms_sum", "sglang:kv_transfer_total_mb_sum"


async def measure(client: Client, pair: Pair, backend: str, rows: Rows, seed: int, say: Callable[[str], None]) -> None:
    """All sizes that fit one chunk of the P and the pools. Raises RunError where the P does not count its transfers."""
    prompts = Prompts(seed, pair.prefill.vocabulary)
    limit = min(int(pair.prefill.facts["chunk_tokens"] or 8192), int(0.9 * pair.pool_tokens))
    for tokens in SIZES:
        if tokens > limit:
            rows.add("skipped", what=f"transfer of {tokens} tokens over {backend}", why=f"{limit} tokens are a chunk, or fit the pools")
            continue
        for repeat in range(REPEATS):
            try:
                sent = await counted(client, pair, prompts.new(tokens))
            except NoAnswer as error:
                rows.add("failed", what=f"transfer of {tokens} tokens over {backend}", why=str(error))
                say(f"{backend} {tokens}: {error}")
                return
            rows.add("transfer", backend=backend, tokens=tokens, **asdict(sent), repeat=repeat)
        say(f"{backend} {tokens}: {sent.bytes / MIB:.0f} MiB in {sent.seconds * 1000:.2f} ms, first token after {(sent.first_s or 0) * 1000:.0f} ms")


@dataclass(frozen=True)
class Sent:
    """KV of one prompt: its size and the P's duration; the D's first token and the P's answer, seconds after the request."""

    bytes: int
    seconds: float
    first_s: float | None
    prefill_s: float


async def counted(client: Client, pair: Pair, ids: list[int]) -> Sent:
    before = await _counters(client, pair.prefill)
    first, second = await pair.through(client, ids, OUTPUT_TOKENS)
    after = await _counters_past(client, pair.prefill, before)
    return Sent(round((after[1] - before[1]) * MIB), (after[0] - before[0]) / 1000, second.first_s, first.seconds)


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
