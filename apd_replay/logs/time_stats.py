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

# a decode worker's line, or a prefill one without retries: the same columns as the long way, at once
TYPICAL = re.compile(
    r"ReqTimeStats\(rid=(?P<rid>[^,]*)(?:, bootstrap_room=(?P<room>[0-8]?[0-9]{1,18}))?, input_len=(?P<input_tokens>[0-9]{1,9}), cached_input_len=(?P<cached_tokens>[0-9]{1,9}), output_len=(?P<output_tokens>[0-9]{1,9}), "
    r"type=(?P<side>\w+)\): (?:bootstrap_duration=(?P<bootstrap_ms>F)ms, )?(?:alloc_wait_duration=(?P<alloc_wait_ms>F)ms, )?(?:transfer_duration=(?P<transfer_ms>F)ms, )?"
    r"queue_duration=(?P<queue_ms>F)ms, forward_duration=(?P<forward_ms>F)ms, entry_time=(?P<entry_ts>F)".replace("F)", r"[0-9]{1,15}\.[0-9]+)"))
TYPES: dict[str, type[str] | type[int] | type[float]] = dict.fromkeys(_MEASURES.values(), float) | dict.fromkeys(_COUNTS.values(), int) | {"rid": str, "side": str}


def read(message: str) -> dict[str, Any] | None:
    """The columns of request_stats; None: the line is cut."""
    typical = TYPICAL.fullmatch(message)
    if typical is not None:
        return {"source": "time_stats", **{name: TYPES[name](value) for name, value in typical.groupdict().items() if value is not None}}
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
