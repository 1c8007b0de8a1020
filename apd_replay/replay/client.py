"""The hot path to a worker: POST over HTTP/1.1 on pooled connections, answers handed over as they arrive.

Plain asyncio, callbacks instead of one task wake-up a chunk, no limit of its own on connections. A connection carries one
request at a time and is used again. Cancelling a `post` breaks its connection, which is how a server learns that nobody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from apd_replay.errors import RunError

IDLE_LIMIT_S = 2.0  # SGLang's server closes a connection after 5 idle seconds: never write to one that may just be closing


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens. Plain HTTP only: workers stand on this machine or in a private network."""

    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Address:
        """`http://host:port`; anything else raises RunError."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme != "http" or not parts.hostname or port is None or parts.path.strip("/"):
            raise RunError(f"{url!r} is not the address of a server; expected http://host:port")
        return cls(parts.hostname, port)

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


class Disconnected(Exception):
    """No connection, or it broke before the answer's end."""


class Malformed(Exception):
    """The other side does not speak HTTP/1.1 as expected."""


@dataclass(frozen=True, slots=True)
class Response:
    """`body` is empty where the pieces went to a callback."""

    status: int
    body: bytes


class _Connection(asyncio.Protocol):
    """One connection and the answer that is being read from it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._answer: asyncio.Future[Response] | None = None
        self._on_body: Callable[[bytes], None] | None = None
        self.idle_since = 0.0

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def send(self, pieces: Sequence[bytes], on_body: Callable[[bytes], None] | None) -> asyncio.Future[Response]:
        assert self._transport is not None
        self._on_body = on_body
        self._status = self._left = 0
        self._chunked = self._keep = False
        self._in_body = False
        self._parts: list[bytes] = []
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.writelines(pieces)
        return self._answer

    # asyncio.Protocol -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            if self._in_body and not self._chunked and self._left < 0:  # the body ends with the connection
                self._finish()
            else:
                self._answer.set_exception(Disconnected(str(error) if error else "the server closed the connection before its answer ended"))

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # nobody asked
            return
        self._buffer += data
        try:
            if self._in_body or self._read_head():
                self._read_body()
        except Exception as error:
            if not self._answer.done():
                self._answer.set_exception(error if isinstance(error, Malformed) else Malformed(f"{type(error).__name__}: {error}"))
            self.close()

    # reading ----------------------------------------------------------------------------------------------------------

    def _read_head(self) -> bool:
        """True once the whole head is there. `_left` becomes the body's length, -1 where only the connection's end tells."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        version, _, rest = lines[0].partition(b" ")
        if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            raise Malformed(f"not an HTTP answer: {lines[0][:80]!r}")
        self._status = int(rest[:3])
        head = {}
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            head[name.strip().lower()] = value.strip().lower()
        if 100 <= self._status < 200:  # an interim answer: the real one follows
            return self._read_head()
        self._chunked = head.get(b"transfer-encoding", b"") == b"chunked"
        self._left = 0 if self._chunked else int(head.get(b"content-length", b"-1"))
        self._keep = version == b"HTTP/1.1" and head.get(b"connection") != b"close"
        self._in_body = True
        return True

    def _read_body(self) -> None:
        if self._chunked:
            self._read_chunks()
        elif self._left < 0:
            self._take(bytes(self._buffer))
            self._buffer.clear()
        else:
            piece = bytes(self._buffer[: self._left])
            del self._buffer[: self._left]
            self._left -= len(piece)
            self._take(piece)
            if self._left == 0:
                self._finish()

    def _read_chunks(self) -> None:
        buffer, at = self._buffer, 0
        while True:
            line = buffer.find(b"\r\n", at)
            if line < 0:
                break
            size = int(buffer[at:line].split(b";")[0], 16)
            start, after = line + 2, line + 2 + size + 2
            if len(buffer) < after:
                break
            at = after
            if size == 0:
                buffer.clear()
                self._finish()
                return
            self._take(bytes(buffer[start : start + size]))
        del buffer[:at]

    def _take(self, piece: bytes) -> None:
        if self._on_body is not None and self._status == 200:
            self._on_body(piece)
        else:
            self._parts.append(piece)

    def _finish(self) -> None:
        assert self._answer is not None
        answer, self._answer = self._answer, None
        if not self._keep:
            self.close()
        if not answer.done():
            answer.set_result(Response(self._status, b"".join(self._parts)))


class Client:
    """Connections to any number of servers. Use inside a running event loop; `close` breaks what is open."""

    def __init__(self) -> None:
        self._idle: dict[Address, list[_Connection]] = {}
        self._busy: set[_Connection] = set()

    async def post(self, to: Address, path: str, body: Sequence[bytes], *, on_body: Callable[[bytes], None] | None = None,
                   on_sent: Callable[[], None] | None = None) -> Response:
        """Send `body` (JSON, in pieces) and wait for the answer's end. `on_body` gets the pieces of a 200 as they come, `on_sent` is
        called when the request has been written. Raises Disconnected or Malformed."""
        head = f"POST {path} HTTP/1.1\r\nHost: {to.host}:{to.port}\r\nContent-Type: application/json\r\nContent-Length: {sum(map(len, body))}\r\n\r\n"
        return await self._exchange(to, [head.encode(), *body], on_body, on_sent)

    async def get(self, to: Address, path: str) -> Response:
        """Raises Disconnected or Malformed."""
        return await self._exchange(to, [f"GET {path} HTTP/1.1\r\nHost: {to.host}:{to.port}\r\n\r\n".encode()], None, None)

    async def _exchange(self, to: Address, pieces: Sequence[bytes], on_body: Callable[[bytes], None] | None, on_sent: Callable[[], None] | None) -> Response:
        connection = await self._connection(to)
        self._busy.add(connection)
        try:
            answer = connection.send(pieces, on_body)
            if on_sent is not None:
                on_sent()
            response = await answer
        except BaseException:
            connection.close()
            raise
        finally:
            self._busy.discard(connection)
        if connection.usable:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.setdefault(to, []).append(connection)
        return response

    async def _connection(self, to: Address) -> _Connection:
        loop = asyncio.get_running_loop()
        idle = self._idle.get(to, [])
        while idle:
            connection = idle.pop()  # the one used last: the older ones age and go
            if connection.usable and loop.time() - connection.idle_since < IDLE_LIMIT_S:
                return connection
            connection.close()
        try:
            _, connection = await loop.create_connection(_Connection, to.host, to.port)
        except OSError as error:
            raise Disconnected(f"cannot connect to {to.url}: {error.strerror or error}") from None
        return connection

    def close(self) -> None:
        for connection in [*self._busy, *(c for idle in self._idle.values() for c in idle)]:
            connection.close()
        self._idle.clear()
