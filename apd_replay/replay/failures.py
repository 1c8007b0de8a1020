"""A server's words become one of schemas.ERROR_KINDS. The sentences are SGLang's, 0.4.9 to 0.5.23."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_SAYS: tuple[tuple[str, str], ...] = (
    ("could be dead, remote mooncake session", "peer_dead"),  # P's latch: refused without trying
    ("Aborted by AbortReq", "aborted"),  # comes wrapped in a KVTransferError, yet somebody hung up
    ("KVPoll.WaitingForInput", "waiting_timeout"),
    ("KVPoll.Bootstrapping", "bootstrap_timeout"),
    ("Could not fetch prefill parallel info", "bootstrap_timeout"),
    ("Could not fetch bootstrap info", "bootstrap_timeout"),
    ("out of memory", "out_of_memory"),
    ("due to OOM", "out_of_memory"),
    ("memory pressure", "out_of_memory"),
    ("host KV pool exhausted", "out_of_memory"),
    ("KVTransferError", "kv_transfer"),
    ("Failed to send", "kv_transfer"),
    ("transfer failed", "kv_transfer"),
    ("Failed to get kvcache from prefill instance", "kv_transfer"),
    ("Lost connection with prefill instance", "kv_transfer"),
    ("NIXL KV", "kv_transfer"),
)

# What P says of a link is a cause; D often only knows that P said no.
_CAUSES = ("peer_dead", "kv_transfer", "bootstrap_timeout", "out_of_memory")


@dataclass(frozen=True, slots=True)
class Failure:
    """`kind` is one of schemas.ERROR_KINDS; `t` when it was known, seconds since the run's start."""

    kind: str
    message: str
    t: float


def kind_of(message: str, status: int | None) -> str:
    """`status`: the HTTP status, or the one inside an abort; None where there is none."""
    lowered = message.lower()
    for words, kind in _SAYS:
        if words.lower() in lowered:
            return kind
    if status is not None and 400 <= status < 500:
        return "http_4xx"
    if status is not None and 500 <= status < 600:
        return "http_5xx"
    return "aborted"


def said_in(body: bytes) -> str:
    """The message in an error body: SGLang's and the router's are JSON of a few shapes; anything else is taken as it is."""
    text = body.decode("utf-8", "replace").strip()
    try:
        found: Any = json.loads(text)
    except ValueError:
        return text
    while isinstance(found, dict):
        inner = next((found[k] for k in ("error", "message", "detail") if k in found), None)
        if inner is None:
            return text
        found = inner
    return found if isinstance(found, str) else text


def of_pair(decode: Failure | None, prefill: Failure | None) -> Failure:
    """One failed request, told by both sides: the first to know gives the time, the one that knows the cause gives the kind."""
    known = [f for f in (decode, prefill) if f is not None]
    first = min(known, key=lambda f: f.t)
    telling = prefill if prefill is not None and prefill.kind in _CAUSES else first
    return Failure(telling.kind, telling.message, first.t)
