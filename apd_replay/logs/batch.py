"""`Prefill batch` and `Decode batch` lines: a head, then `key: value` pairs in any order.

Order, opening and fields changed in nearly every version (0.4 to 0.5.23), so nothing is taken by position. A key that has no
column keeps its text in `rest`.
"""

from __future__ import annotations

import re
from typing import Any

from apd_replay.logs.rest import as_json

HEAD = re.compile(r"(Prefill|Decode) batch(?: \[(\d+)\])?[.,]?(?: |$)")
_INT, _FLOAT = re.compile(r"-?[0-9]+"), re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_LIMIT = {"used_tokens": 1 << 63}

_BOTH = {"#running-req": "running", "#queue-req": "queued", "token usage": "token_usage", "full token usage": "token_usage"}
COLUMNS = {
    "prefill": _BOTH | {
        "#new-seq": "new_seqs", "#new-token": "new_tokens", "#cached-token": "cached_tokens", "#pending-token": "pending_tokens",
        "#bootstrap-req": "bootstrap_queue", "#prealloc-req": "bootstrap_queue", "#unbootstrapped-req": "bootstrap_queue",
        "#inflight-req": "inflight_queue", "#transferring-req": "inflight_queue", "input throughput (token/s)": "throughput",
    },
    "decode": _BOTH | {
        "#token": "used_tokens", "#full token": "used_tokens", "#gpu token": "used_tokens", "gpu token usage": "token_usage",
        "pre-allocated usage": "preallocated_usage", "#prealloc-req": "prealloc_queue", "#transfer-req": "transfer_queue",
        "#retracted-req": "retracted", "gen throughput (token/s)": "throughput",
    },
}  # fmt: skip
FRACTIONS = frozenset({"token_usage", "preallocated_usage", "throughput"})
AMBIGUOUS = "#prealloc-req"
_SHOWS_PREFILL = frozenset({"#bootstrap-req", "#unbootstrapped-req", "#inflight-req", "#transferring-req"})
_SHOWS_DECODE = frozenset({"pre-allocated usage", "#transfer-req"})
_NEEDED = {"prefill": ("#queue-req",), "decode": ("#queue-req", "gen throughput (token/s)")}


def read(message: str, head: re.Match[str], role: str | None) -> tuple[dict[str, Any] | None, str | None]:
    """The line's columns (None: the line is cut), and the role that its fields show.

    `#prealloc-req` is the bootstrap queue in a prefill line of a P and the preallocation queue on a D: the role decides.
    """
    kind = head[1].lower()
    row: dict[str, Any] = {"kind": kind}
    rest = {"iteration": head[2]} if head[2] else {}
    pairs = split(message, head)
    if pairs is None:
        return None, None
    keys = {key for key, _ in pairs}
    shown = "prefill" if keys & _SHOWS_PREFILL else "decode" if keys & _SHOWS_DECODE else None
    for key, value in pairs:
        column = COLUMNS[kind].get(key)
        if key == AMBIGUOUS and kind == "prefill" and (shown or role) == "decode":
            column = "prealloc_queue"
        figure = None if column is None or column in row else number(value, column)
        if figure is None:
            rest[key] = value
        else:
            row[column or ""] = figure
    if rest:
        row["rest"] = as_json(rest)
    return row, shown


def split(message: str, head: re.Match[str]) -> list[tuple[str, str]] | None:
    """The line's `key: value` pairs; None: the line is cut."""
    pairs = []
    for part in message[head.end() :].rstrip(" ,").split(", "):
        key, colon, value = part.rpartition(": ")
        if not colon or not key or not value:
            return None
        pairs.append((key, value))
    keys = [key for key, _ in pairs]
    return pairs if all(key in keys for key in _NEEDED[head[1].lower()]) else None


def number(value: str, column: str) -> float | int | None:
    """The value as its column holds it; None where it does not fit."""
    if column in FRACTIONS:
        return float(value) if _FLOAT.fullmatch(value) else None
    if len(value) > 19 or not _INT.fullmatch(value):
        return None
    figure = int(value)
    return figure if abs(figure) < _LIMIT.get(column, 1 << 31) else None


def is_cut_head(message: str) -> bool:
    """The first letters of a batch line and no more: `Prefill batc`."""
    return len(message) >= 8 and any(head.startswith(message.rstrip()) for head in ("Prefill batch.", "Decode batch.", "Prefill batch,", "Decode batch,"))
