"""Before a run: does every way that a request can take give a token?"""

from __future__ import annotations

import asyncio
import sys
from random import Random

import httpx

from apd_replay.cluster.servers import Servers
from apd_replay.errors import RunError
from apd_replay.replay.client import Address, Client
from apd_replay.replay.failures import Failure
from apd_replay.replay.generate import Answer, body, generate
from apd_replay.replay.http import Targets

PROBE_LIMIT_S = 300.0  # first requests compile kernels and open links


def router_sees(servers: Servers, router: Address, workers: int) -> None:
    """Wait until the router counts all its workers as healthy: it answers /health long before it can route. Raises RunError."""

    def healthy() -> bool:
        try:
            found = httpx.get(f"{router.url}/workers", timeout=5.0).json().get("workers", [])
        except (httpx.HTTPError, ValueError):
            return False
        return sum(bool(w.get("is_healthy")) for w in found) >= workers

    servers.wait_for("the router does not see its workers", healthy)


async def probe(targets: Targets) -> None:
    """One token over every way: each worker, each P-D link, the router. Raises RunError that names the way and what came back."""
    client, seeds = Client(), Random()
    ways: list[tuple[str, list[Address], dict[str, object]]] = []
    if targets.prefill:
        for p, prefill in enumerate(targets.prefill):
            for d, decode in enumerate(targets.decode):
                room = {"bootstrap_host": prefill.bootstrap_host, "bootstrap_port": prefill.bootstrap_port, "bootstrap_room": seeds.getrandbits(63)}
                ways.append((f"prefill-{p} to decode-{d}", [decode, prefill.address], room))
    else:
        ways += [(f"worker-{w}", [at], {}) for w, at in enumerate(targets.decode)]
    if targets.router:
        ways.append(("the router", [targets.router], {}))
    loop = asyncio.get_running_loop()
    try:
        for way, addresses, room in ways:
            prompt = ",".join(str(seeds.randrange(100, 1000)) for _ in range(8)).encode()
            pieces = body(prompt, 1, f"apd-ready-{seeds.getrandbits(32):x}", 0.0, room)
            try:
                async with asyncio.timeout(PROBE_LIMIT_S):
                    answers = await asyncio.gather(*(generate(client, to, pieces, loop.time) for to in addresses))
            except TimeoutError:
                raise RunError(f"{way}: no token within {PROBE_LIMIT_S:g} s") from None
            for answer in answers:
                if isinstance(answer, Failure):
                    raise RunError(f"{way}: {answer.kind}: {answer.message}")
            _check_ids(way, answers[0])
    finally:
        client.close()


def _check_ids(way: str, answer: Answer | Failure) -> None:
    if isinstance(answer, Answer) and answer.output is None:
        print(f"apd: {way} sends no token ids, so follow-up prompts carry stand-ins; start it with --skip-tokenizer-init", file=sys.stderr)
