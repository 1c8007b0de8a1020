"""The streaming client: whatever way an answer is cut into packets, the same pieces come out."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apd_replay.errors import RunError
from apd_replay.replay.client import Address, Client, Disconnected, Malformed, Response
from apd_replay.replay.generate import Answer, _Events, generate


def exchange(packets: list[bytes], *, close: bool = True) -> tuple[Response | Exception, bytes]:
    """What the client makes of an answer that comes in `packets`; and the pieces of its body, joined."""
    pieces: list[bytes] = []
    writers: list[asyncio.StreamWriter] = []

    async def go() -> Response | Exception:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            await reader.readuntil(b"\r\n\r\n")
            for packet in packets:
                writer.write(packet)
                await writer.drain()
                await asyncio.sleep(0)
            if close:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = Client()
        try:
            async with asyncio.timeout(5):
                return await client.post(Address("127.0.0.1", server.sockets[0].getsockname()[1]), "/x", [b"{}"], on_body=pieces.append)
        except (Disconnected, Malformed) as error:
            return error
        finally:
            client.close()
            server.close()
            for writer in writers:
                writer.transport.abort()
            await asyncio.sleep(0.01)

    return asyncio.run(go()), b"".join(pieces)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({p % len(data) for p in places} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


EVENTS = b"data: {\"a\": 1}\n\ndata: " + b"x" * 300 + b"\n\ndata: [DONE]\n\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in (EVENTS[:7], EVENTS[7:200], EVENTS[200:])) + b"0\r\n\r\n"
LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(EVENTS), EVENTS)
UNTIL_CLOSE = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n" + EVENTS


@pytest.mark.parametrize("answer", [CHUNKED, LENGTH, UNTIL_CLOSE])
@settings(max_examples=15, deadline=None)
@given(places=st.lists(st.integers(0, 10_000), max_size=12))
def test_an_answer_is_read_the_same_however_it_is_cut(answer: bytes, places: list[int]) -> None:
    response, body = exchange(cut(answer, places))
    assert isinstance(response, Response) and response.status == 200 and body == EVENTS


@pytest.mark.parametrize("answer", [CHUNKED[:-5], LENGTH[:-1], CHUNKED[:30], b""])
def test_an_answer_that_breaks_off_is_a_broken_connection(answer: bytes) -> None:
    assert isinstance(exchange([answer])[0], Disconnected)


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n\r\n", CHUNKED.replace(b"\r\n7\r\n", b"\r\nzz\r\n"), b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n"])
def test_what_is_not_http_is_malformed(answer: bytes) -> None:
    assert isinstance(exchange([answer], close=False)[0], Malformed)


def test_an_error_keeps_its_body_out_of_the_stream() -> None:
    response, body = exchange([b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy"])
    assert isinstance(response, Response) and (response.status, response.body, body) == (503, b"busy", b"")


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "http://127.0.0.1", "ftp://x:1", "http://x:1/path", "http://x:99999999"])
def test_an_address_that_cannot_be_used_is_named(url: str) -> None:
    with pytest.raises(RunError, match="expected http://host:port"):
        Address.of(url)


def test_an_address_is_read_with_and_without_its_scheme() -> None:
    assert Address.of("127.0.0.1:80") == Address.of("http://127.0.0.1:80/") == Address("127.0.0.1", 80)
    assert Address.of("http://[::1]:80").url == "http://[::1]:80"


@settings(max_examples=50, deadline=None)
@given(count=st.integers(1, 12), cumulative=st.booleans(), places=st.lists(st.integers(0, 10_000), max_size=8))
def test_events_give_one_answer_however_they_come(count: int, cumulative: bool, places: list[int]) -> None:
    ids = list(range(500, 500 + count))
    sent = b"".join(b"data: " + json.dumps({"output_ids": ids[: k + 1] if cumulative else ids[k : k + 1], "meta_info": {"completion_tokens": k + 1}}).encode() + b"\n\n" for k in range(count))
    firsts: list[int] = []
    events = _Events(lambda: firsts.append(1))
    for piece in cut(sent + b"data: [DONE]\n\n", places):
        events.feed(piece)
    assert events.output() == ids and firsts == [1] and events.meta["completion_tokens"] == count


def test_a_text_only_server_is_counted_by_its_own_figures() -> None:
    async def go() -> object:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            event = json.dumps({"text": "ab", "meta_info": {"prompt_tokens": 1, "completion_tokens": 2, "finish_reason": {"type": "length"}}}).encode()
            body = b"data: " + event + b"\n\ndata: [DONE]\n\n"
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = Client()
        try:
            return await generate(client, Address("127.0.0.1", server.sockets[0].getsockname()[1]), [b"{}"], asyncio.get_running_loop().time)
        finally:
            client.close()
            server.close()
            await asyncio.sleep(0.01)

    answer = asyncio.run(go())
    assert isinstance(answer, Answer) and (answer.output, answer.completion_tokens) == (None, 2)
