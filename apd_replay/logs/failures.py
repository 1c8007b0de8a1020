"""`... failed for request` lines: which room, on which side, and why.

One failed request is printed on the P, on the D, once per rank in old versions, and a third time inside the client's answer. A row
is a line; requests are counted by distinct room on one side.
"""

from __future__ import annotations

import re
from typing import Any

HEAD = re.compile(r"(Prefill transfer|Prefill bootstrap|Decode transfer|Decode handshake) failed for request ")
_RANK = re.compile(r"\brank=(\d+)")
_RID = re.compile(r"\breq\.rid='([^']*)'")
_ROOM = re.compile(r"\bbootstrap_room=(\d{1,19})\b")
_EXCEPTION = re.compile(r"with exception (.*)$", re.DOTALL)
_KV_ERROR = re.compile(r"KVTransferError\(bootstrap_room=(\d{1,19})(?:, remote_endpoint=([^)]*))?\):\s?(.*)$", re.DOTALL)
_PEER = re.compile(r"(?:remote mooncake session |Failed to send \w+ \w+(?: \w+)? of \d+ to |bootstrap_addr: )(\S+:\d+)\b")

# what the reason says -> (kind on a P, kind on a D). On a D every failed transfer is a transfer_error: whether it was a real failure or
# an instant rejection is told apart on the P.
REASONS: tuple[tuple[str, str, str], ...] = (
    ("Aborted by AbortReq", "abort", "abort"),
    ("Decode instance could be dead", "peer_dead", "transfer_error"),
    ("in KVPoll.Bootstrapping", "bootstrap_timeout", "bootstrap_timeout"),
    ("in KVPoll.WaitingForInput", "waiting_timeout", "waiting_timeout"),
)


def read(message: str, head: re.Match[str]) -> tuple[dict[str, Any], bool]:
    """The event's columns, and whether the reason is there (else it may stand on the next physical line)."""
    side = "prefill" if head[1].startswith("Prefill") else "decode"
    text = _EXCEPTION.search(message)
    error = _KV_ERROR.search(message)
    reason = error[3].strip() if error else text[1].strip() if text else ""
    room = error or _ROOM.search(message)
    rest: dict[str, Any] = {"head": head[1] + " failed"}
    for name, pattern in (("rank", _RANK), ("rid", _RID)):
        if (match := pattern.search(message)) is not None:
            rest[name] = int(match[1][:9]) if name == "rank" else match[1]
    if error is None:
        rest["no_kv_transfer_error"] = True
    row = {"room": _room_number(room[1]) if room else None, "peer": (error[2] if error else None), "rest": rest}
    explain(row, reason, side)
    return row, bool(reason)


def explain(row: dict[str, Any], reason: str, side: str) -> None:
    """Fill in what follows from the reason."""
    kind = "transfer_error"
    for text, on_prefill, on_decode in REASONS:
        if text in reason:
            kind = on_prefill if side == "prefill" else on_decode
            break
    peer = _PEER.search(reason)
    row.update(kind=kind, detail=reason[:500], side=side)
    if peer is not None:
        row["peer"] = peer[1]
        if reason.startswith("Failed to send"):
            row["rest"]["endpoint"] = True  # the D's status endpoint, not its Mooncake session


def _room_number(text: str) -> int | None:
    room = int(text)
    return room if room < 1 << 63 else None
