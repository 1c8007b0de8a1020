"""The simplest server that streams: what every client of the comparison talks to, and the clock that judges them.

    python mock_server.py PORT CHUNKS FIRST_MS STEP_MS

POST /generate (SGLang's shape, the answer so far in every event) and /v1/chat/completions (for tools that know no other). The request
that asks for N tokens is row N - FIRST_ROW of the load, whatever the order. GET /rows gives, and forgets, one [row, arrived, ended, bytes, connection]
for each request; times are CLOCK_MONOTONIC, which all processes of the machine share. An arrival is stamped when the body is complete.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time

FIRST_ROW = 1000
TOKENS = re.compile(rb'"max_(?:new_|completion_)?tokens"\s*:\s*(\d+)')
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
rows: list[list[float | int | None]] = []


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(content: object) -> bytes:
    return chunk(b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n")


def native(k: int, last: bool, asked: int) -> bytes:
    meta = {"id": "m", "finish_reason": {"type": "length", "length": asked} if last else None, "completion_tokens": asked if last else k, "cached_tokens": 0}
    return event({"text": " tok" * k, "output_ids": list(range(100, 100 + k)), "meta_info": meta})


def chat(k: int, last: bool, asked: int) -> bytes:
    out = event({"id": "m", "object": "chat.completion.chunk", "created": 1, "model": "mock",
                 "choices": [{"index": 0, "delta": {"content": " tok"}, "finish_reason": "length" if last else None}]})  # fmt: skip
    usage = {"prompt_tokens": 1000, "completion_tokens": asked, "total_tokens": 1000 + asked}
    return out + (event({"id": "m", "object": "chat.completion.chunk", "created": 1, "model": "mock", "choices": [], "usage": usage}) if last else b"")


class Server:
    def __init__(self, chunks: int, first_s: float, step_s: float) -> None:
        self.chunks, self.first_s, self.step_s = chunks, first_s, step_s
        self.early = {kind: [kind(k, False, 0) for k in range(1, chunks)] for kind in (native, chat)}
        self.connections = 0


class Connection(asyncio.Protocol):
    def __init__(self, server: Server) -> None:
        self.server, self.buffer = server, bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.server.connections += 1
        self.number = self.server.connections

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self.buffer[:end]).lower()
        _, found, rest = head.partition(b"content-length:")
        whole = end + 4 + (int(rest.split(b"\r\n", 1)[0]) if found else 0)
        if len(self.buffer) < whole:
            return
        arrived, body = time.monotonic(), bytes(self.buffer[end + 4 : whole])
        del self.buffer[:whole]
        path = head.split(b" ", 2)[1]
        if path not in (b"/generate", b"/v1/chat/completions"):
            return self.plain(rows if path == b"/rows" else {"status": "ok", "model_path": "mock", "data": [{"id": "mock", "object": "model"}]})
        found_tokens = TOKENS.search(body)
        asked = int(found_tokens[1]) if found_tokens else self.server.chunks
        row = [asked - FIRST_ROW, arrived, None, len(body), self.number]
        rows.append(row)
        kind = native if path == b"/generate" else chat
        pieces = [*self.server.early[kind], kind(self.server.chunks, True, asked) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"]
        if not self.server.first_s and not self.server.step_s:
            row[2] = time.monotonic()
            self.transport.write(HEAD + b"".join(pieces))
        else:
            self.later(asyncio.get_running_loop().time() + self.server.first_s, HEAD, pieces, 0, row)

    def later(self, due: float, head: bytes, pieces: list[bytes], k: int, row: list) -> None:
        asyncio.get_running_loop().call_at(due, self.send, due, head, pieces, k, row)

    def send(self, due: float, head: bytes, pieces: list[bytes], k: int, row: list) -> None:
        if k + 1 < len(pieces):
            self.transport.write(head + pieces[k])
            self.later(due + self.server.step_s, b"", pieces, k + 1, row)
        else:
            row[2] = time.monotonic()  # before the write: a client may be quicker than our next line
            self.transport.write(head + pieces[k])

    def plain(self, content: object) -> None:
        body = json.dumps(content).encode()
        if content is rows:
            rows.clear()
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


async def main() -> None:
    port, chunks, first_ms, step_ms = map(float, sys.argv[1:])
    server = Server(int(chunks), first_ms / 1000, step_ms / 1000)
    listening = await asyncio.get_running_loop().create_server(lambda: Connection(server), "127.0.0.1", int(port), backlog=4096)
    print("ready", flush=True)
    await listening.serve_forever()


asyncio.run(main())
