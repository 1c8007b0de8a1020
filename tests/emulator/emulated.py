"""Emulated clusters for the tests: small experiments whose hardware is a hundred times as fast, and their servers in this process or in one of their own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from apd_replay import configuration
from apd_replay.cluster.ports import free_ports
from apd_replay.configuration import Experiment
from apd_replay.emulator.endpoints import Endpoints
from apd_replay.emulator.http import Connection
from apd_replay.emulator.live import LiveCluster
from apd_replay.emulator.spec import HOST, Place, Spec, places
from apd_replay.replay.client import Address, Client, Response
from apd_replay.trace.model import Session, Trace, Turn

ROOT = Path(__file__).parents[2]


@cache
def _matrix() -> dict[str, Experiment]:
    return configuration.load(ROOT / "config/config.yaml").experiments


def faster(hardware: dict[str, Any], times: float) -> dict[str, Any]:
    """The same hardware with all its times divided."""

    def scaled(found: dict[str, Any]) -> dict[str, Any]:
        return {key: scaled(value) if isinstance(value, dict) else value / times if key.endswith("_s") and key != "bytes_per_s" else
                value * times if key == "bytes_per_s" else value for key, value in found.items()}  # fmt: skip

    return scaled(hardware)


def experiment(kind: str = "kvc", *, times: float = 100.0, cluster: dict[str, Any] | None = None, mechanisms: dict[str, bool] | None = None,
               **settings: Any) -> Experiment:
    """E0 (`kvc`) or E6 (`dp`) on engine `emulator`, with changes."""
    found = _matrix()[{"kvc": "E0", "dp": "E6"}[kind]]
    merged = {**found.settings, "engine": "emulator", "time_scale": 1, "start_spread_s": 0, **settings,
              "mechanisms": {**found.settings["mechanisms"], **(mechanisms or {})}}  # fmt: skip
    return replace(found, id="T@emulator", settings=merged, cluster={**found.cluster, **(cluster or {})}, hardware=faster(found.hardware, times))


def trace(sessions: dict[str, list[tuple[int, int]]], gap_s: float = 0.1, start_gap_s: float = 0.0) -> Trace:
    """`sessions`: by name, (prompt, answer) tokens of each turn; every prompt repeats what was before it. Starts lie `start_gap_s` apart."""
    out = []
    for k, (name, lengths) in enumerate(sessions.items()):
        turns = [Turn(name, t, k * start_gap_s, gap_s if t else None, "think" if t else None, prompt, answer,
                      min(lengths[t - 1][0] + lengths[t - 1][1], prompt) if t else None) for t, (prompt, answer) in enumerate(lengths)]  # fmt: skip
        out.append(Session(name, tuple(turns)))
    return Trace("tiny", "0" * 64, tuple(out))


class Emulated:
    """A cluster served in this process, and a client to ask it."""

    def __init__(self, cluster: LiveCluster, found: tuple[Place, ...]) -> None:
        self.cluster, self.client = cluster, Client()
        self.places = {p.name: p for p in found}

    def at(self, worker: str) -> Address:
        return Address(HOST, self.places[worker].port)

    async def get(self, worker: str, path: str) -> Any:
        response = await self.client.get(self.at(worker), path)
        assert response.status == 200, response
        return json.loads(response.body)

    async def post(self, worker: str, path: str, body: Any) -> tuple[int, Any]:
        response = await self.client.post(self.at(worker), path, [json.dumps(body).encode()])
        return response.status, json.loads(response.body) if response.body else None

    async def generate(self, worker: str, prompt: list[int], output: int = 8, **more: Any) -> tuple[int, Any]:
        """Not streamed."""
        return await self.post(worker, "/generate", {"input_ids": prompt, "sampling_params": {"max_new_tokens": output}, **more})

    async def stream(self, worker: str, prompt: list[int], output: int = 8, **more: Any) -> list[dict[str, Any]]:
        """The events of a streamed answer, without the closing one."""
        pieces: list[bytes] = []
        body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": output}, "stream": True, **more}
        found: Response = await self.client.post(self.at(worker), "/generate", [json.dumps(body).encode()], on_body=pieces.append)
        assert found.status == 200
        events = b"".join(pieces).split(b"\n\n")
        assert events[-2:] == [b"data: [DONE]", b""]
        return [json.loads(event[len(b"data: ") :]) for event in events[:-2]]


@asynccontextmanager
async def emulated(chosen: Experiment, logs: Path | None = None) -> AsyncIterator[Emulated]:
    shape = chosen.cluster
    found = places(chosen, free_ports(2 * (shape["prefill"] + shape["decode"] + shape["workers"])))
    spec = Spec(chosen, 1, found, logs)
    cluster = LiveCluster(spec, 1_000_000.0)
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(partial(Connection, Endpoints(spec, place, cluster).handle), HOST, place.port) for place in found]
    out = Emulated(cluster, found)
    try:
        yield out
    finally:
        out.client.close()
        for server in servers:
            server.close()
        cluster.stop()
        await asyncio.sleep(0.01)
