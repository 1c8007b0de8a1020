"""Requests as the server logs them: `--log-requests --log-requests-format json` lines and `--export-metrics-to-file` files.

Both become rows of request_stats. Prompts and answers are not kept.
"""

from __future__ import annotations

import json
from typing import Any

_COUNTS = {"prompt_tokens": "input_tokens", "cached_tokens": "cached_tokens", "completion_tokens": "output_tokens"}


def read(message: str) -> dict[str, Any] | None:
    """None: not such a line. An empty row: such a line, but not about a finished request."""
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
    row["rest"] = json.dumps(rest, ensure_ascii=False)[:4000] if len(rest) < 100 else None
    return row


def _whole(value: Any, bits: int) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << bits else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e18 else None


def _text(value: Any) -> str | None:
    return value[:200] if isinstance(value, str) else None
