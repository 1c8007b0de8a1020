"""One process, one event loop, all workers of an emulated cluster, each on a port of its own. Run as a module, it takes a Spec from its environment."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable
from functools import partial

from apd_replay.emulator.endpoints import Endpoints
from apd_replay.emulator.http import Connection
from apd_replay.emulator.live import LiveCluster
from apd_replay.emulator.spec import HOST, READY, VARIABLE, Spec
from apd_replay.errors import RunError

BACKLOG = 4096


async def serve(spec: Spec, ready: Callable[[], None]) -> None:
    """Until SIGTERM or SIGINT. Calls `ready` once every port listens. Raises RunError where one is taken, and what went wrong in the model:
    a cluster that has lost an event answers nothing that is worth having."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _end, ended, None)
    loop.set_exception_handler(lambda _, context: _end(ended, context.get("exception") or RunError(str(context["message"]))))
    if spec.logs is not None:
        spec.logs.mkdir(parents=True, exist_ok=True)
    cluster = LiveCluster(spec, time.time())
    listening: list[asyncio.Server] = []
    try:
        for place in spec.places:
            endpoints = Endpoints(spec, place, cluster)
            try:
                listening.append(await loop.create_server(partial(Connection, endpoints.handle), HOST, place.port, backlog=BACKLOG))
            except OSError as error:
                raise RunError(f"{place.name}: cannot listen on {HOST}:{place.port}: {error.strerror}; give another first port") from None
        gc.freeze()  # what is there stays; only requests come and go
        ready()
        await ended
    finally:
        for server in listening:
            server.close()
        cluster.stop()


def _end(ended: asyncio.Future[None], why: BaseException | None) -> None:
    if ended.done():
        return
    if why is None:
        ended.set_result(None)
    else:
        ended.set_exception(why)


def main() -> None:
    asyncio.run(serve(Spec.from_json(os.environ[VARIABLE]), lambda: print(READY, flush=True)))


if __name__ == "__main__":
    main()
