"""One row a bootstrap room: what the client sent, what the P and the D wrote about it.

A failed request is on both sides and, in old versions, once per rank: here it is one row, so nothing is counted twice. Only the P tells
a real failure from an instant rejection; a client's abort is neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from apd_replay.logs.links import Event, Links

QUEUES = 4  # transfer queues of a P, SGLang's default
_OUTCOME = {
    "transfer_error": "real_failure", "peer_dead": "rejection", "waiting_timeout": "waiting_timeout", "bootstrap_timeout": "bootstrap_timeout",
    "abort": "aborted", "kv_transfer": "real_failure", "aborted": "aborted", "client_timeout": "aborted",
}  # fmt: skip
_STRONGEST = ("transfer_error", "peer_dead", "waiting_timeout", "bootstrap_timeout", "abort")


def join(requests: Iterable[dict[str, Any]], events: Iterable[Event], links: Links, started_ts: float | None) -> list[dict[str, Any]]:
    """Rows of `transfers`, by time. `requests`: rows of the requests table; events with their final `ts`."""
    rooms: dict[int, dict[str, Any]] = {}
    for request in requests:
        room = request["bootstrap_room"]
        if room is not None:
            rooms[room] = {
                "room": room, "session": request["session"], "turn": request["turn"], "prefill_worker": request["prefill_worker"],
                "decode_worker": request["decode_worker"], "started_t": request["dispatched_t"], "_request": request,
            }  # fmt: skip
    for event in events:
        if event.room is not None and event.kind in _STRONGEST and event.role in ("prefill", "decode"):
            _put(rooms.setdefault(event.room, {"room": event.room}), event, started_ts)
    for room, row in rooms.items():
        row.setdefault("prefill_worker", links.prefill_of.get(room))
        row.setdefault("decode_worker", links.decode_of.get(room))
        request = row.pop("_request", None)
        row["outcome"] = _outcome(row, request)
        row["ended_t"] = _ended(row, request)
        if row.get("started_t") is not None and row["ended_t"] is not None:
            row["wait_s"] = round(row["ended_t"] - row["started_t"], 6)
        row["shard"] = shard(links, row["decode_worker"])
    return sorted(rooms.values(), key=lambda r: (r.get("started_t") if r.get("started_t") is not None else r["ended_t"] or 0.0, r["room"]))


def _put(row: dict[str, Any], event: Event, started_ts: float | None) -> None:
    """Each side's first event; a `transfer_error` of one rank does not hide the reason that another rank gives."""
    side = "p" if event.role == "prefill" else "d"
    known = row.get(f"{side}_kind")
    if known is None:
        t = event.ts - started_ts if event.ts is not None and started_ts is not None else None
        row.update({f"{side}_kind": event.kind, f"{side}_t": t, f"{side}_file": event.file, f"{side}_line": event.line})


def _outcome(row: dict[str, Any], request: dict[str, Any] | None) -> str:
    if request is not None and request["status"] == "ok":
        return "ok"
    if row.get("p_kind") is not None:
        return _OUTCOME[row["p_kind"]]
    if request is not None and request["status"] == "error":
        return _OUTCOME.get(request["error_kind"] or "", "other")
    if row.get("d_kind") in ("waiting_timeout", "bootstrap_timeout", "abort"):
        return _OUTCOME[row["d_kind"]]
    return "unknown"  # in flight when the run was cut, or a D's line whose reason only the P knows


def _ended(row: dict[str, Any], request: dict[str, Any] | None) -> float | None:
    """First token, or when the failure was known: to the client if it knows, else to the P, else to the D."""
    if request is not None:
        if row["outcome"] == "ok":
            return request["first_token_t"] if request["first_token_t"] is not None else request["finished_t"]
        if request["finished_t"] is not None:
            return float(request["finished_t"])
    return row["p_t"] if row.get("p_t") is not None else row.get("d_t")


def shard(links: Links, decode_worker: str | None) -> int | None:
    """The P's transfer queue that serves this D: as the run states it, else the sum of the D's ports. None unless the Mooncake session of
    each of its ranks is known."""
    if decode_worker is None or decode_worker in links.queues:
        return links.queues.get(decode_worker or "")
    ports = [int(port) for port in (s.rpartition(":")[2] for s in links.sessions.get(decode_worker, ())) if port.isdecimal()]
    return sum(ports) % QUEUES if len(ports) == links.ranks.get(decode_worker, 1) else None
