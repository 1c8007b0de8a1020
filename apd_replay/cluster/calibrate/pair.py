"""A P and a D that work on one prompt together, as a router would have them do it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from apd_replay.cluster.calibrate.traffic import Reply, generate
from apd_replay.cluster.calibrate.worker import Server
from apd_replay.errors import RunError
from apd_replay.replay.admission import CLOSE
from apd_replay.replay.client import Client, Disconnected, Malformed
from apd_replay.replay.generate import DIRECT


class NoAnswer(RunError):
    """A prompt that the D did not answer as asked."""


@dataclass(frozen=True)
class Pair:
    """`rooms`: not seeded, since a room that a P has seen before never gets its KV."""

    prefill: Server
    decode: Server
    bootstrap_port: int
    rooms: random.Random

    @property
    def pool_tokens(self) -> int:
        return min(self.prefill.limits.pool_tokens, self.decode.limits.pool_tokens)

    async def through(self, client: Client, ids: Sequence[int], output_tokens: int, session: str | None = None) -> tuple[Reply, Reply]:
        """What P and D answer. The D keeps the KV where a `session` is named and the D has the plugin. Raises NoAnswer where D fails: its tokens are the
        proof, what P answers in its stream differs between versions."""
        named: dict[str, Any] = {"routing_key": session} if session else {}
        bootstrap = {"bootstrap_host": self.prefill.address.host, "bootstrap_port": self.bootstrap_port, "bootstrap_room": self.rooms.getrandbits(62), **named}
        first, second = await asyncio.gather(
            generate(client, self.prefill.address, ids, output_tokens, bootstrap), generate(client, self.decode.address, ids, output_tokens, bootstrap)
        )
        if second.error:
            raise NoAnswer(second.error)
        return first, second

    async def append(self, client: Client, ids: Sequence[int], output_tokens: int, session: str) -> Reply:
        """A direct turn: the D computes what it has not kept of the session itself."""
        reply = await generate(client, self.decode.address, ids, output_tokens, {"routing_key": session, "bootstrap_host": DIRECT})
        if reply.error:
            raise NoAnswer(reply.error)
        return reply

    @asynccontextmanager
    async def keeping(self, client: Client, session: str) -> AsyncIterator[str]:
        """A session that the D keeps until the end of the block; what went wrong in it is told, not what goes wrong in closing then."""
        try:
            yield session
        except BaseException:
            with suppress(RunError):
                await self._close(client, session)
            raise
        await self._close(client, session)

    async def _close(self, client: Client, session: str) -> None:
        try:
            response = await client.post(self.decode.address, CLOSE, [json.dumps({"session": session}).encode()])
        except (Disconnected, Malformed) as error:
            raise RunError(f"{self.decode.address.url}{CLOSE}: {error}") from None
        if response.status != 200:
            raise RunError(f"{self.decode.address.url}{CLOSE}: HTTP {response.status}; start the D with this package's plugin")
