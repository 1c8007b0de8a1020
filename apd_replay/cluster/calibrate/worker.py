"""Prefill, append, decode and calls, measured on one unified worker that nobody else uses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apd_replay.cluster.calibrate import calls
from apd_replay.cluster.calibrate import points as grid
from apd_replay.cluster.calibrate.rows import Rows
from apd_replay.cluster.calibrate.traffic import (
    Prompts,
    Reply,
    flush,
    generate,
    get_json,
    step_seconds,
    together,
)
from apd_replay.errors import RunError
from apd_replay.replay.client import Address, Client

SHAPE = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "num_experts", "num_experts_per_tok", "torch_dtype",
         "vocab_size", "max_position_embeddings")  # fmt: skip
WARM_UP = (64, 300, 900, 2048, 8192, 16384)  # kernels are chosen, compiled and captured by shape

@dataclass(frozen=True)
class Server:
    """A running server and what it says of itself."""

    address: Address
    model: str
    limits: grid.Limits
    vocabulary: int
    facts: dict[str, Any]


async def inspect(client: Client, to: Address) -> Server:
    """Raises RunError where the server does not answer, or its model's configuration cannot be read on this machine."""
    info = await get_json(client, to, calls.COUPLED)
    loads = (await get_json(client, to, calls.SNAPSHOT)).get("loads") or [{}]
    config = Path(info["model_path"]) / "config.json"
    try:
        shape = json.loads(config.read_text())
    except (OSError, ValueError):
        raise RunError(f"{to.url} serves {info['model_path']}, whose config.json cannot be read here; calibrate on the server's machine") from None
    facts = {
        "sglang": info.get("version"), "role": info.get("disaggregation_mode") or "null",
        "kv_pool_tokens": info["max_total_num_tokens"], "chunk_tokens": info.get("chunked_prefill_size"),
        "max_running_requests": loads[0].get("max_running_requests"), "attention_backend": info.get("attention_backend"),
        "page_size": info.get("page_size"), **{key: shape[key] for key in SHAPE if key in shape},
    }  # fmt: skip
    longest = min(info.get("max_req_input_len") or 1 << 40, shape.get("max_position_embeddings") or 1 << 40)
    limits = grid.Limits(info["max_total_num_tokens"], longest, facts["max_running_requests"] or 256)
    return Server(to, info["model_path"], limits, shape["vocab_size"], facts)


class Worker:
    """Measures points one after the other; prompts that the next point needs cached stay cached."""

    def __init__(self, client: Client, server: Server, rows: Rows, seed: int, say: Callable[[str], None]) -> None:
        self._client, self._server, self._rows, self._say = client, server, rows, say
        self._prompts = Prompts(seed, server.vocabulary)
        self._cached: tuple[str, int] = ("", 0)
        self._prefix: list[int] = []
        self._batch: list[list[int]] = []

    async def warm_up(self) -> None:
        for tokens in WARM_UP:
            if grid.misfit(grid.Prefill(0, tokens), self._server.limits) is None:
                await self._one(self._prompts.new(tokens), 2)
        await together(self._client, self._server.address, [self._prompts.new(64) for _ in range(min(32, self._server.limits.running))], 40)
        await flush(self._client, self._server.address)

    async def measure(self, point: grid.Point) -> None:
        """One point. What does not fit the server or fails is a row of its own, not an error."""
        if why := grid.misfit(point, self._server.limits):
            self._rows.add("skipped", what=str(point), why=why)
            return
        try:
            match point:
                case grid.Prefill():
                    await self._prefill(point)
                case grid.Decode():
                    await self._decode(point)
                case grid.Calls():
                    await self._calls(point)
        except RunError as error:
            self._rows.add("failed", what=str(point), why=str(error))
            self._say(f"{point}: {error}")

    async def _one(self, ids: list[int], output_tokens: int = 1) -> Reply:
        reply = await generate(self._client, self._server.address, ids, output_tokens)
        if reply.error:
            raise RunError(reply.error)
        return reply

    async def _empty_for(self, purpose: str, tokens: int) -> bool:
        """Empty the cache where it holds something else than `purpose` needs; True where it was emptied."""
        if self._cached == (purpose, tokens):
            return False
        await flush(self._client, self._server.address)
        self._cached = (purpose, tokens)
        return True

    async def _prefill(self, point: grid.Prefill) -> None:
        if await self._empty_for("prefix", point.cached) and point.cached:
            self._prefix = self._prompts.new(point.cached)
            reply = await self._one(self._prefix)
            self._rows.add("prefill", new=point.cached, cached=reply.cached, seconds=reply.seconds, repeat=0)
        taken = []
        for repeat in range(point.repeats):
            reply = await self._one([*self._prefix[: point.cached], *self._prompts.new(point.new)])
            new = point.cached + point.new - reply.cached
            self._rows.add("prefill", new=new, cached=reply.cached, seconds=reply.seconds, repeat=repeat)
            taken.append(reply.seconds)
        if not point.cached:  # else the pool fills with prompts that nobody asks for again
            self._cached = ("", 0)
        self._say(f"prefill {point.new} behind {point.cached}: {min(taken):.4f} s")

    async def _decode(self, point: grid.Decode) -> None:
        if await self._empty_for("batch", point.context):
            most = max(p.batch for p in grid.plan() if isinstance(p, grid.Decode) and p.context == point.context and grid.misfit(p, self._server.limits) is None)
            self._batch = [self._prompts.new(point.context - 1) for _ in range(most)]
            filled = await together(self._client, self._server.address, self._batch, 1)
            if errors := [r.error for r in filled if r.error]:
                self._cached = ("", 0)
                raise RunError(errors[0])
        step = await self._step(self._batch[: point.batch], grid.DECODE_TOKENS)
        # The step's context is that of the middle of the window: half of what is generated has been added.
        self._rows.add("decode", batch=point.batch, context=point.context + grid.DECODE_TOKENS // 2, step_s=step)
        self._say(f"decode {point.batch} at {point.context}: {step * 1000:.2f} ms")

    async def _step(self, prompts: list[list[int]], tokens: int) -> float:
        replies = await together(self._client, self._server.address, prompts, tokens)
        if errors := [r.error for r in replies if r.error]:
            raise RunError(errors[0])
        step = step_seconds(replies)
        if step is None:
            raise RunError("the requests never decoded all at once")
        return step

    async def _calls(self, point: grid.Calls) -> None:
        if point.running and await self._empty_for("calls", point.running):
            self._batch = [self._prompts.new(calls.CONTEXT) for _ in range(point.running)]
            await together(self._client, self._server.address, self._batch, 1)
        await calls.measure(self._client, self._server.address, point.running, lambda: self._step(self._batch, calls.TOKENS), self._rows, self._say)
