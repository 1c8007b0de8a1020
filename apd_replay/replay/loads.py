"""Load snapshots during a run, where the experiment asks for them (asking disturbs a worker: claim s4)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from apd_replay.replay.client import Address, Client, Disconnected, Malformed
from apd_replay.routing.view import Load

PATH = "/v1/loads?include=all"  # shared memory from SGLang 0.5.14 on, a scheduler call before


async def poll(every_s: float, workers: dict[str, Address], now: Callable[[], float], started_ts: float, file: Path,
               report: Callable[[str, Load], None]) -> None:
    """Until cancelled: ask every worker each `every_s` seconds, write a row of table `loads` for each answer, and tell `report`.
    A worker that does not answer leaves no row."""
    client = Client()
    due = now()
    with open(file, "w", encoding="utf-8") as rows:
        try:
            while True:
                await asyncio.gather(*(_ask(client, name, at, now, started_ts, rows.write, report) for name, at in workers.items()))
                rows.flush()
                due = max(due + every_s, now())
                await asyncio.sleep(due - now())
        finally:
            client.close()


async def _ask(client: Client, worker: str, at: Address, now: Callable[[], float], started_ts: float, write: Callable[[str], Any],
               report: Callable[[str, Load], None]) -> None:
    try:
        async with asyncio.timeout(10):
            response = await client.get(at, PATH)
        snapshot = json.loads(response.body)["loads"][0] if response.status == 200 else None
    except (Disconnected, Malformed, TimeoutError, ValueError, LookupError, TypeError):
        return
    if snapshot is None:
        return
    t = now()
    queues = snapshot.get("disaggregation") or {}
    row = {
        "worker": worker, "t": round(t, 6), "ts": round(started_ts + t, 6), "running": snapshot.get("num_running_reqs"),
        "waiting": snapshot.get("num_waiting_reqs"), "used_tokens": snapshot.get("num_used_tokens"),
        "total_tokens": snapshot.get("max_total_num_tokens"), "token_usage": snapshot.get("token_usage"),
        "transfer_queue": queues.get("decode_transfer_queue_reqs"), "prealloc_queue": queues.get("decode_prealloc_queue_reqs"),
        "retracted": queues.get("decode_retracted_queue_reqs"), "rest": snapshot,
    }  # fmt: skip
    write(json.dumps(row) + "\n")
    used, total = row["used_tokens"], row["total_tokens"]
    free = total - used if used is not None and total is not None else None
    report(worker, Load(t, free, row["token_usage"], row["running"], row["transfer_queue"], row["prealloc_queue"], row["retracted"]))
