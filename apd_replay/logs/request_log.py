"""Requests as the server logs them: `--log-requests` lines, text or JSON, and `--export-metrics-to-file` files.

Both become rows of request_stats. Prompts and answers are not kept.
"""

from __future__ import annotations

import json
import re
from typing import Any

from apd_replay.logs.rest import as_json

_COUNTS = {"prompt_tokens": "input_tokens", "cached_tokens": "cached_tokens", "completion_tokens": "output_tokens"}

_TEXT_NUMBER = re.compile(r"'(\w+)': (-?[0-9]{1,18}(?:\.[0-9]+)?)(?=[,}])")
_TEXT_WORD = re.compile(r"'(id)': '([^']*)'")
_TEXT_REASON = re.compile(r"'finish_reason': \{'type': '(\w+)'")
_TEXT_ROOM = re.compile(r"\bbootstrap_room=([0-9]{1,18})\b")


def read(message: str) -> dict[str, Any] | None:
    """None: not such a line. An empty row: such a line, but not about a finished request."""
    if message.startswith("Finish: "):
        return _from_text(message)
    try:
        content = json.loads(message)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    event = content.get("event")
    if event in ("request.received", "request.received.openai", "scheduler.status"):
        return {}
    if event == "request.finished":
        out = content.get("out")
        meta = out.get("meta_info") if isinstance(out, dict) else None
        return _row("request_log", content, meta if isinstance(meta, dict) else {})
    if "completion_tokens" in content and ("e2e_latency" in content or "finish_reason" in content):
        return _row("export", content, content)
    return None


def _from_text(message: str) -> dict[str, Any] | None:
    """`Finish: obj=..., out={...}`: figures of the answer's meta_info. It stands last, behind the prompt and the answer."""
    _, found, text = message.rpartition("'meta_info': {")
    if not found:
        return None
    meta: dict[str, Any] = {match[1]: match[2] for match in _TEXT_WORD.finditer(text)}
    meta |= {match[1]: float(match[2]) if "." in match[2] else int(match[2]) for match in _TEXT_NUMBER.finditer(text)}
    reason = _TEXT_REASON.search(text)
    room = _TEXT_ROOM.search(message)
    return _row("request_log", {"obj": {"bootstrap_room": int(room[1]) if room else None}}, meta | {"finish_reason": reason[1] if reason else None})


def _row(source: str, content: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    obj = content.get("obj") if isinstance(content.get("obj"), dict) else content
    assert isinstance(obj, dict)
    row: dict[str, Any] = {"source": source, "rid": _text(content.get("rid") or meta.get("id") or obj.get("rid"))}
    for key, column in _COUNTS.items():
        row[column] = _whole(meta.get(key), 31)
    row["room"] = _whole(obj.get("bootstrap_room"), 63)
    row["latency_s"] = _number(meta.get("e2e_latency"))
    row["entry_ts"] = _number(meta.get("request_received_ts"))
    reason = meta.get("finish_reason")
    row["finish_reason"] = _text(reason.get("type") if isinstance(reason, dict) else reason)
    rest = {k: v for k, v in meta.items() if k not in _COUNTS and isinstance(v, (int, float, str, bool)) and k not in ("text", "id")}
    row["rest"] = as_json(rest) if len(rest) < 100 else None
    return row


def _whole(value: Any, bits: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << bits else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e18 else None


def _text(value: Any) -> str | None:
    return value[:200] if isinstance(value, str) else None
