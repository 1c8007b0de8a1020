"""The emulator's HTTP, spoken byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from apd_replay.emulator.http import MOST_BODY_BYTES, Connection

gone: list[str] = []


def handle(connection: Connection, method: str, path: str, body: bytes) -> None:
    if path == "/later":
        connection.on_gone = lambda: gone.append(path)
    elif path == "/stream":
        connection.piece(b"one")
        asyncio.get_running_loop().call_later(0.01, connection.end, b"two")
    else:
        connection.reply(200, f"{method} {path} {body.decode()}", "text/plain")


def exchange(talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]) -> bytes:
    async def go() -> bytes:
        server = await asyncio.get_running_loop().create_server(partial(Connection, handle), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=1 << 20)
        try:
            async with asyncio.timeout(5):
                return await talk(reader, writer)
        finally:
            writer.close()
            server.close()
            await asyncio.sleep(0.01)

    return asyncio.run(go())


def sent(*pieces: bytes, until: bytes) -> bytes:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.005)
        return await reader.readuntil(until)

    return exchange(talk)


def test_a_request_may_come_in_any_pieces_and_two_at_once() -> None:
    request = b"POST /a?b=c HTTP/1.1\r\nHost: x\r\ncontent-LENGTH: 5\r\n\r\nhello"
    assert sent(*(request[k : k + 7] for k in range(0, len(request), 7)), until=b"hello").endswith(b"POST /a hello")
    both = sent(request + request.replace(b"hello", b"again"), until=b"again")
    assert both.count(b"HTTP/1.1 200 OK") == 2 and b"POST /a hello" in both


def test_thousands_of_requests_in_one_packet_are_answered_one_by_one() -> None:
    found = sent(b"GET /a HTTP/1.1\r\n\r\n" * 3000 + b"GET /end HTTP/1.1\r\n\r\n", until=b"GET /end ")
    assert found.count(b"HTTP/1.1 200 OK") == 3001


def test_an_answer_in_pieces_is_chunked_and_the_next_request_waits_for_its_end() -> None:
    found = sent(b"GET /stream HTTP/1.1\r\n\r\nGET /next HTTP/1.1\r\n\r\n", until=b"GET /next ")
    assert b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\nHTTP/1.1 200 OK" in found and found.count(b"Transfer-Encoding: chunked") == 1


def test_a_client_that_hangs_up_is_noticed() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"GET /later HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0.02)
        writer.transport.abort()
        await asyncio.sleep(0.02)
        return b""

    gone.clear()
    exchange(talk)
    assert gone == ["/later"]


@pytest.mark.parametrize(("request_bytes", "status"), [
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"), (b"\x16\x03\x01\x02\x00\r\n\r\n", b"400"), (b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"400"),
    (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"411"), (f"POST / HTTP/1.1\r\nContent-Length: {MOST_BODY_BYTES + 1}\r\n\r\n".encode(), b"413"),
    (b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000, b"431")])  # fmt: skip
def test_what_is_no_request_is_refused_and_the_connection_closed(request_bytes: bytes, status: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(request_bytes)
        return await reader.read()

    assert exchange(talk).startswith(b"HTTP/1.1 " + status)
