"""One request to one server with random token ids, and when its tokens came."""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from apd_replay.errors import RunError
from apd_replay.replay.client import Address, Client, Disconnected, Malformed

TEMPERATURE = 1.0  # dummy weights and greedy decoding would send every token to the same experts
SPECIAL = 0.01  # share of a vocabulary, its lowest ids, that is left out: special tokens lie there


@dataclass
class Reply:
    """Times are of time.perf_counter. `arrivals`: (time, tokens generated so far) of every event. `error` is None where all went well."""

    sent: float
    ended: float = 0.0
    cached: int = 0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    error: str | None = None

    @property
    def seconds(self) -> float:
        return self.ended - self.sent

    @property
    def first_s(self) -> float | None:
        return self.arrivals[0][0] - self.sent if self.arrivals else None


class Prompts:
    """Random token ids of a vocabulary. Seeded, so that a run can be repeated; never twice the same, so that nothing hits the cache unasked."""

    def __init__(self, seed: int, vocabulary: int) -> None:
        self._random, self._vocabulary = random.Random(seed), vocabulary

    def new(self, tokens: int) -> list[int]:
        return self._random.choices(range(int(SPECIAL * self._vocabulary), self._vocabulary), k=tokens)


async def generate(client: Client, to: Address, ids: Sequence[int], output_tokens: int, bootstrap: dict[str, Any] | None = None) -> Reply:
    """Ask for exactly `output_tokens`; an error of any kind comes back in the reply."""
    request = {
        "input_ids": list(ids), "rid": uuid.uuid4().hex, "stream": True, **(bootstrap or {}),
        "sampling_params": {"max_new_tokens": output_tokens, "temperature": TEMPERATURE, "ignore_eos": True},
    }  # fmt: skip
    body = json.dumps(request).encode()
    reply = Reply(time.perf_counter())
    tail = b""

    def on_body(piece: bytes) -> None:
        nonlocal tail
        now = time.perf_counter()
        *events, tail = (tail + piece).split(b"\n\n")
        for event in events:
            _take(reply, event, now)

    try:
        response = await client.post(to, "/generate", [body], on_body=on_body)
    except (Disconnected, Malformed) as error:
        reply.error = f"{to.url}: {error}"
    else:
        if response.status != 200:
            reply.error = f"{to.url}: HTTP {response.status}: {response.body[:200].decode(errors='replace')}"
    reply.ended = time.perf_counter()
    if reply.error is None and (not reply.arrivals or reply.arrivals[-1][1] != output_tokens):
        reply.error = f"{to.url}: {reply.arrivals[-1][1] if reply.arrivals else 0} tokens came instead of {output_tokens}"
    return reply


def _take(reply: Reply, event: bytes, now: float) -> None:
    data = event.removeprefix(b"data:").strip()
    if not data or data == b"[DONE]":
        return
    found = json.loads(data)
    meta = found.get("meta_info")
    if meta is None:
        reply.error = str(found.get("error", found))[:300]
        return
    reason = meta.get("finish_reason")
    if isinstance(reason, dict) and reason.get("type") == "abort":
        reply.error = str(reason.get("message", "aborted"))[:300]
        return
    reply.cached = int(meta.get("cached_tokens") or 0)
    reply.arrivals.append((now, int(meta["completion_tokens"])))


async def together(client: Client, to: Address, prompts: Sequence[Sequence[int]], output_tokens: int) -> list[Reply]:
    return await asyncio.gather(*(generate(client, to, ids, output_tokens) for ids in prompts))


async def get_json(client: Client, to: Address, path: str) -> Any:
    """Raises RunError where the server does not answer with JSON."""
    try:
        response = await client.get(to, path)
        if response.status == 200:
            return json.loads(response.body)
    except (Disconnected, Malformed, ValueError) as error:
        raise RunError(f"{to.url}{path}: {error}; is a server with SGLang's HTTP API running there?") from None
    raise RunError(f"{to.url}{path}: HTTP {response.status}")


async def flush(client: Client, to: Address) -> None:
    """Empty the server's prefix cache. It refuses while a request still winds up, hence the tries."""
    for _ in range(20):
        response = await client.post(to, "/flush_cache", [b"{}"])
        if response.status == 200:
            return
        await asyncio.sleep(0.1)
    raise RunError(f"{to.url}: the prefix cache cannot be emptied (HTTP {response.status}); measure on a server without other traffic")


def step_seconds(replies: Sequence[Reply], skip: int = 4) -> float | None:
    """Mean seconds a token over the window in which every request of the batch is decoding; None where there is no such window.

    The first `skip` events of each are left out: the batch is still filling then.
    """
    if any(len(r.arrivals) <= skip + 1 for r in replies):
        return None
    start = max(r.arrivals[skip][0] for r in replies)
    end = min(r.arrivals[-1][0] for r in replies)
    rates = []
    for reply in replies:
        inside = [(t, n) for t, n in reply.arrivals if start <= t <= end]
        if len(inside) > 1 and inside[-1][1] > inside[0][1]:
            rates.append((inside[-1][0] - inside[0][0]) / (inside[-1][1] - inside[0][1]))
    return sum(rates) / len(rates) if rates else None
