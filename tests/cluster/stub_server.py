"""A server with as much of SGLang's HTTP API as `apd calibrate` uses, and service times that are known exactly."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from typing import Any

POOL_TOKENS = 20_000
CALL_S = 0.004
PREFILL_S, TOKEN_S = 0.004, 2e-6
STEP_S, REQUEST_S = 0.001, 0.004
TRANSFER_MS, TRANSFER_MIB = 3.0, 1.5


class StubServer:
    """`role`: null, prefill or decode. Remembers prompts as a prefix cache would, one after the other."""

    def __init__(self, model_path: str, role: str = "null", *, refuse: bool = False, plugin: bool = False, metrics: bool = True) -> None:
        self._model_path, self._role, self._refuse, self._plugin, self._metrics = model_path, role, refuse, plugin, metrics
        self._cache: list[list[int]] = []
        self._running = 0
        self._transfers = 0
        self.longest_batch = 0
        self.closed: list[str] = []
        self.steps: list[tuple[int, float]] = []  # requests at its beginning, seconds that it took: a sleep is longer on a busy machine
        self.url = ""

    async def __aenter__(self, port: int = 0) -> StubServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"Content-Length: (\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                await self._answer(head.split()[1].decode(), body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if path == "/generate":
            return await self._generate(json.loads(body), writer)
        if path == "/flush_cache":
            self._cache.clear()
            return _send(writer, {})
        if path == "/server_info":
            await asyncio.sleep(CALL_S)
            return _send(writer, {"model_path": self._model_path, "version": "0.0", "max_total_num_tokens": POOL_TOKENS, "chunked_prefill_size": 8192, "disaggregation_mode": self._role, "page_size": 1})
        if path == "/admit_direct_append" and self._plugin:
            await asyncio.sleep(CALL_S)
            return _send(writer, {"can_admit": False})
        if path == "/close_direct_session" and self._plugin:
            self.closed.append(json.loads(body)["session"])
            return _send(writer, {"held_tokens": 0})
        if path == "/health":
            return _send(writer, {})
        if path == "/v1/loads":
            return _send(writer, {"loads": [{"max_running_requests": 8}]})
        if path == "/metrics" and self._metrics:
            lines = [f'sglang:kv_transfer_latency_ms_sum{{role="p"}} {self._transfers * TRANSFER_MS}', f'sglang:kv_transfer_total_mb_sum{{role="p"}} {self._transfers * TRANSFER_MIB}']
            return _send(writer, "\n".join(lines))
        _send(writer, {"error": "not found"}, "404 Not Found")

    async def _generate(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        ids, tokens = request["input_ids"], request["sampling_params"]["max_new_tokens"]
        if self._refuse:
            return _send(writer, {"error": {"message": "out of order"}}, "503 Service Unavailable")
        cached = max((_common(ids, old) for old in self._cache), default=0)
        cached = min(cached, len(ids) - 1)
        self._cache.append(ids)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        self._running += 1
        self.longest_batch = max(self.longest_batch, self._running)
        await asyncio.sleep(PREFILL_S + TOKEN_S * (len(ids) - cached))
        for n in range(1, tokens + 1):
            if n > 1:
                began, running = time.monotonic(), self._running
                await asyncio.sleep(STEP_S + REQUEST_S * running)
                self.steps.append((running, time.monotonic() - began))
            event = {"output_ids": [1] * n, "meta_info": {"completion_tokens": n, "cached_tokens": cached, "finish_reason": {"type": "length"} if n == tokens else None}}
            _chunk(writer, b"data: " + json.dumps(event).encode() + b"\n\n")
            await writer.drain()
        self._running -= 1
        if "bootstrap_room" in request:
            self._transfers += 1
        _chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def _common(a: list[int], b: list[int]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


def _send(writer: asyncio.StreamWriter, content: Any, status: str = "200 OK") -> None:
    body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)


async def _launched() -> None:
    """As `python -m sglang.launch_server` would be started; what it does not know it ignores."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--model-path")
    arguments.add_argument("--port", type=int)
    arguments.add_argument("--disaggregation-mode", default="null")
    given, _ = arguments.parse_known_args()
    await StubServer(given.model_path, given.disaggregation_mode).__aenter__(given.port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_launched())
