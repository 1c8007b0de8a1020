"""HTTP/1.1 as far as a worker's clients speak it: kept connections, bodies with a length, answers whole or in chunks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

MOST_HEAD_BYTES = 64 * 1024
MOST_BODY_BYTES = 64 * 1024 * 1024
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 411: "Length Required", 413: "Content Too Large",
           431: "Request Header Fields Too Large", 500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip
_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"

Handler = Callable[["Connection", str, str, bytes], None]  # connection, method, path without its query, body


class Connection(asyncio.Protocol):
    """One client's connection, one request at a time. The handler answers with `reply`, or with `piece` and then `end`, at once or later.

    `on_gone` is called if the client hangs up before its answer's end.
    """

    def __init__(self, handle: Handler) -> None:
        self._handle = handle
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._wanted = 0  # bytes of the request under way, head included; 0: not known yet
        self._head = 0
        self._answering = self._streaming = False
        self.on_gone: Callable[[], None] | None = None

    # the answer -------------------------------------------------------------------------------------------------------

    def reply(self, status: int, content: Any, kind: str = "application/json") -> None:
        """`content`: text or bytes as they are, anything else as JSON."""
        body = content if isinstance(content, bytes) else (content if isinstance(content, str) else json.dumps(content)).encode()
        self._write(f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        self._answered()

    def refuse(self, status: int, message: str) -> None:
        """An error in SGLang's shape."""
        self.reply(status, {"error": {"message": message, "code": status}})

    def piece(self, data: bytes) -> None:
        chunk = b"%x\r\n%b\r\n" % (len(data), data)
        self._write(chunk if self._streaming else _STREAM + chunk)
        self._streaming = True

    def end(self, data: bytes) -> None:
        """The last piece."""
        self.piece(data)
        self._write(b"0\r\n\r\n")
        self._answered()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _answered(self) -> None:
        self._answering = self._streaming = False
        self.on_gone = None
        if self._buffer and self._transport is not None:
            asyncio.get_running_loop().call_soon(self._read)  # not from here: a thousand requests in one packet would be a thousand frames deep

    # asyncio.Protocol -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        gone, self.on_gone = self.on_gone, None
        if gone is not None:
            gone()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._read()

    def _read(self) -> None:
        buffer = self._buffer
        if self._answering:
            return
        if not self._wanted and not self._read_length():
            return
        if len(buffer) < self._wanted:
            return
        line = bytes(buffer[: buffer.find(b"\r\n")]).decode("latin-1").split(" ")
        body = bytes(buffer[self._head : self._wanted])
        del buffer[: self._wanted]
        self._wanted = 0
        self._answering = True
        self._handle(self, line[0], line[1].partition("?")[0], body)

    def _read_length(self) -> bool:
        """True once the request's head is there; sets how long the whole is."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MOST_HEAD_BYTES:
                self._break_off(431, "the request's head is too long")
            return False
        head = bytes(self._buffer[:end]).lower()
        if head.count(b" ", 0, head.find(b"\r\n") if b"\r\n" in head else end) != 2 or not head.split(b"\r\n", 1)[0].endswith((b"http/1.1", b"http/1.0")):
            self._break_off(400, "not an HTTP/1.1 request")
            return False
        if b"\r\ntransfer-encoding:" in head:
            self._break_off(411, "a body needs a Content-Length")
            return False
        _, found, rest = head.partition(b"\r\ncontent-length:")
        text = rest.split(b"\r\n", 1)[0].strip()
        if found and not text.isdigit():
            self._break_off(400, "Content-Length is not a number")
            return False
        length = int(text) if found else 0
        if length > MOST_BODY_BYTES:
            self._break_off(413, f"a body of more than {MOST_BODY_BYTES} bytes")
            return False
        self._head, self._wanted = end + 4, end + 4 + length
        return True

    def _break_off(self, status: int, message: str) -> None:
        self._buffer.clear()
        self.refuse(status, message)
        if self._transport is not None:
            self._transport.close()
