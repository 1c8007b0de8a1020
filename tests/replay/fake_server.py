"""A small server that speaks SGLang's /generate as far as the replay needs it, and does what a test tells it to."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from apd_replay.replay.client import Address

Handler = Callable[["Exchange"], Awaitable[None]]


class Exchange:
    """One request: `path`, the parsed `body`, when it had come (`t`, monotonic), and ways to answer."""

    def __init__(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter, connection: int) -> None:
        self.path, self.body, self.connection = path, body, connection
        self.t = time.monotonic()
        self.ended_t: float | None = None
        self._writer = writer

    @property
    def prompt(self) -> list[int]:
        return self.body["input_ids"]

    @property
    def asked(self) -> int:
        return self.body["sampling_params"]["max_new_tokens"]

    async def reply(self, status: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self._writer.write(f"HTTP/1.1 {status} Whatever\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
        await self._writer.drain()

    async def begin(self) -> None:
        self._writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        await self._writer.drain()

    async def event(self, content: Any) -> None:
        await self.raw(b"data: " + (content if isinstance(content, bytes) else json.dumps(content).encode()) + b"\n\n")

    async def raw(self, data: bytes) -> None:
        self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self._writer.drain()

    async def end(self) -> None:
        await self.event(b"[DONE]")
        self.ended_t = time.monotonic()
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def hang_up(self) -> None:
        self._writer.transport.abort()

    def meta(self, count: int, **more: Any) -> dict[str, Any]:
        return {"id": self.body.get("rid"), "prompt_tokens": len(self.prompt), "completion_tokens": count, "cached_tokens": 0,
                "num_retractions": 0, "finish_reason": None, **more}  # fmt: skip

    def output(self, count: int) -> list[int]:
        """Tokens that depend on the whole prompt, as a model's do."""
        state = hash(tuple(self.prompt)) & 0xFFFFFF
        return [1000 + (state + 7919 * k) % 5000 for k in range(count)]


async def answer(x: Exchange, *, step_s: float = 0.0, incremental: bool = False, **meta: Any) -> None:
    """As many tokens as asked, one event each; `meta` joins the meta_info of all."""
    output = x.output(x.asked)
    await x.begin()
    for k in range(x.asked):
        if step_s:
            await asyncio.sleep(step_s)
        reason = {"type": "length", "length": x.asked} if k == x.asked - 1 else None
        await x.event({"output_ids": output[k : k + 1] if incremental else output[: k + 1], "meta_info": x.meta(k + 1, finish_reason=reason, **meta)})
    await x.end()


async def abort(x: Exchange, message: str, status: int | None = None) -> None:
    """A 200 whose stream ends in an abort."""
    await x.begin()
    await x.event({"output_ids": [], "meta_info": x.meta(0, finish_reason={"type": "abort", "message": message, "status_code": status})})
    await x.end()


class FakeServer:
    """`requests` holds what came, in order; `connections` how many were opened; `hung_up` the requests whose client left early."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.requests: list[Exchange] = []
        self.connections = 0
        self.hung_up: list[Exchange] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.address = Address("127.0.0.1", 0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self.writers.append(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line, *fields = head.split("\r\n")
                length = next((int(f.split(":")[1]) for f in fields if f.lower().startswith("content-length")), 0)
                body = json.loads(await reader.readexactly(length)) if length else {}
                exchange = Exchange(line.split(" ")[1], body, writer, number)
                self.requests.append(exchange)
                work = asyncio.ensure_future(self.handler(exchange))
                while not work.done() and not reader.at_eof():
                    await asyncio.wait((work,), timeout=0.02)
                if not work.done():
                    self.hung_up.append(exchange)
                    work.cancel()
                    break
                work.result()
                if writer.transport.is_closing():
                    break
        writer.transport.abort()


@asynccontextmanager
async def serving(handler: Handler):
    fake = FakeServer(handler)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        yield fake
    finally:
        server.close()
        for writer in fake.writers:
            writer.transport.abort()
        await asyncio.sleep(0.05)  # let both ends see it
