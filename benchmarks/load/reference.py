"""The least that a client can do: send prebuilt bodies in time and read every event. Without records, plans or checks: a floor, not a replayer.

    python reference.py raw|aiohttp LOAD.json URL IN_FLIGHT

LOAD.json: {"rows": [[session, due_s or gap_s, prompt tokens, row], ...]}; a session's first row is due at due_s of the run, the next ones gap_s
after the answer before. IN_FLIGHT 0: no limit. Prints {"t0": CLOCK_MONOTONIC of the run's start}.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import groupby
from urllib.parse import urlsplit

kind, load, url, in_flight = sys.argv[1:]
FIRST_ROW = 1000
Post = Callable[[bytes], Awaitable[None]]


def body(tokens: int, row: int) -> bytes:
    ids = ",".join(str(100 + (row * 7919 + k * 104729) % 900) for k in range(tokens))
    return f'{{"input_ids":[{ids}],"sampling_params":{{"max_new_tokens":{FIRST_ROW + row},"temperature":0.0,"ignore_eos":true}},"stream":true,"rid":"r{row}"}}'.encode()


class Reading:
    """Every event is parsed, the time of the first and the last token kept: what a measuring client cannot leave out."""

    def __init__(self) -> None:
        self.first = self.last = 0.0
        self.tokens = 0

    def event(self, data: bytes) -> None:
        if data.startswith(b"data: {"):
            found = json.loads(data[6:])
            now = time.monotonic()
            if found["output_ids"]:
                self.first, self.last, self.tokens = self.first or now, now, found["meta_info"]["completion_tokens"]


def raw() -> Post:
    at, idle = urlsplit(url), []

    async def post(content: bytes) -> None:
        reader, writer = idle.pop() if idle else await asyncio.open_connection(at.hostname, at.port, limit=1 << 20)
        writer.write(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
        await reader.readuntil(b"\r\n\r\n")
        reading = Reading()
        while size := int(await reader.readuntil(b"\r\n"), 16):
            reading.event((await reader.readexactly(size + 2))[:-2])
        await reader.readexactly(2)
        idle.append((reader, writer))

    return post


def with_aiohttp() -> Post:
    import aiohttp

    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None))

    async def post(content: bytes) -> None:
        reading = Reading()
        async with session.post(f"{url}/generate", data=content, headers={"Content-Type": "application/json"}) as response:
            async for line in response.content:
                reading.event(line)

    return post


async def main() -> None:
    with open(load, encoding="utf-8") as file:
        rows = json.load(file)["rows"]
    sessions = [list(turns) for _, turns in groupby(rows, key=lambda r: r[0])]
    single = all(len(turns) == 1 for turns in sessions)
    bodies = {turns[0][3]: body(*turns[0][2:]) for turns in sessions} if single else {}
    post = with_aiohttp() if kind == "aiohttp" else raw()
    loop = asyncio.get_running_loop()
    permits = asyncio.Semaphore(int(in_flight) or 1 << 30)
    t0 = loop.time() + 0.5
    print(json.dumps({"t0": t0}), flush=True)

    async def session(turns: list) -> None:
        due = t0
        for _, wait_s, tokens, row in turns:
            content = bodies.pop(row, None) or body(tokens, row)  # in the gap, as ours does
            due += wait_s
            await asyncio.sleep(due - loop.time())
            async with permits:
                await post(content)
            due = loop.time()

    await asyncio.gather(*(session(turns) for turns in sessions))


asyncio.run(main())
