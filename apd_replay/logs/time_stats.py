"""`ReqTimeStats(...)` lines (--enable-request-time-stats-logging): the best account of a request that stock SGLang gives."""

from __future__ import annotations

import re
from typing import Any

from apd_replay.logs.rest import as_json

HEAD = "ReqTimeStats("
_LINE = re.compile(r"ReqTimeStats\((.*?)\): (.*)$", re.DOTALL)
_UNITS = {"ms": 1.0, " GB/s": 1.0, " MB": 1.0, "s": 1000.0, "": 1.0}  # the first that fits
_FIGURE = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")

_WORDS = {"rid": "rid", "type": "side"}
_COUNTS = {"bootstrap_room": "room", "input_len": "input_tokens", "cached_input_len": "cached_tokens", "output_len": "output_tokens"}
_MEASURES = {
    "bootstrap_duration": "bootstrap_ms", "bootstrap_queue_duration": "bootstrap_ms", "alloc_wait_duration": "alloc_wait_ms",
    "prealloc_queue_duration": "alloc_wait_ms", "transfer_duration": "transfer_ms", "queue_duration": "queue_ms",
    "forward_duration": "forward_ms", "entry_time": "entry_ts", "transfer_total": "transfer_mb", "transfer_speed": "transfer_gb_s",
}  # fmt: skip


def read(message: str) -> dict[str, Any] | None:
    """The columns of request_stats; None: the line is cut."""
    match = _LINE.match(message)
    if match is None:
        return None
    row: dict[str, Any] = {"source": "time_stats"}
    rest: dict[str, str] = {}
    for item in (match[1] + ", " + match[2]).split(", "):
        key, _, text = item.partition("=")
        if key in _WORDS:
            row[_WORDS[key]] = text
        elif key in _COUNTS and text.isdecimal() and int(text) < 1 << (63 if key == "bootstrap_room" else 31):
            row[_COUNTS[key]] = int(text)
        elif key in _MEASURES and _MEASURES[key] not in row and (measure := _measure(text)) is not None:
            row[_MEASURES[key]] = measure
        elif item:
            rest[key] = text
    if "entry_ts" not in row and "=" in match[2]:
        return None
    if rest:
        row["rest"] = as_json(rest)
    return row


def _measure(text: str) -> float | None:
    """A figure with its unit, milliseconds for a duration; None for anything else."""
    unit = next(u for u in _UNITS if text.endswith(u))
    figure = text.removesuffix(unit)
    if len(figure) > 20 or not _FIGURE.fullmatch(figure):
        return None
    return float(figure) * _UNITS[unit]
