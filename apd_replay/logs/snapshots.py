"""Load snapshots: loads.jsonl of a run, `/v1/loads` answers, `/metrics` pages. All become rows of `loads`."""

from __future__ import annotations

import gzip
import json
import re
from calendar import timegm
from collections import defaultdict
from pathlib import Path
from typing import Any

from apd_replay.errors import InputError

Row = dict[str, Any]
_METRIC = re.compile(r"sglang:(\w+)(?:\{(.*)\})? (\S+)$")
_DP_RANK = re.compile(r'\bdp_rank="(\d+)"')
_ISO = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d(?:\.\d+)?)(?:Z|\+00:00)?$")

# the names that a /v1/loads item, a metrics page and our own columns use
COLUMNS = {
    "running": ("running", "num_running_reqs"), "waiting": ("waiting", "num_waiting_reqs", "num_queue_reqs"),
    "used_tokens": ("used_tokens", "num_used_tokens"), "total_tokens": ("total_tokens", "max_total_num_tokens"),
    "token_usage": ("token_usage",), "transfer_queue": ("transfer_queue", "decode_transfer_queue_reqs", "num_decode_transfer_queue_reqs"),
    "prealloc_queue": ("prealloc_queue", "decode_prealloc_queue_reqs", "num_decode_prealloc_queue_reqs"),
    "retracted": ("retracted", "decode_retracted_queue_reqs", "num_retracted_reqs"),
}  # fmt: skip


def is_snapshot(path: Path) -> bool:
    """A metrics page or a /v1/loads answer, by its first bytes."""
    head = _text(path, 4096).lstrip()
    return head.startswith(("# HELP sglang:", "# TYPE sglang:", "sglang:")) or (head.startswith("{") and '"loads"' in head[:200])


def read_snapshot(path: Path, worker: str, taken_ts: float | None) -> list[Row]:
    """Rows of a file that `is_snapshot` knows. A metrics page has no time of its own: `taken_ts`, or it gives no row."""
    text = _text(path)
    if text.lstrip().startswith("{"):
        try:
            return from_loads(json.loads(text), worker, taken_ts)
        except ValueError as error:
            raise InputError(path, f"not valid JSON ({error})", remedy="expected the answer of /v1/loads") from None
    return _from_metrics(text, worker, taken_ts)


def read_loads(path: Path, started_ts: float) -> list[Row]:
    """loads.jsonl: one snapshot a line, `worker` with `t` or `ts` (or `timestamp`), figures flat or as /v1/loads gives them."""
    rows: list[Row] = []
    if not path.is_file():
        return rows
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(path, f"not valid JSON ({error})", line=number, remedy="expected one snapshot a line") from None
        if not isinstance(content, dict) or not isinstance(content.get("worker"), str):
            raise InputError(path, "no worker", line=number, column="worker", remedy="expected an object with worker and t")
        t = _number(content.get("t"))
        ts = started_ts + t if t is not None else _time(content.get("ts", content.get("timestamp")))
        found = from_loads(content, content["worker"], ts)
        if ts is None or not found:
            raise InputError(path, "no time", line=number, column="t", remedy="expected t, ts or timestamp")
        rows += found
    return rows


def from_loads(content: Row, worker: str, taken_ts: float | None) -> list[Row]:
    """One row a DP rank of a /v1/loads answer, or one row of flat figures."""
    ts = taken_ts if taken_ts is not None else _time(content.get("timestamp"))
    items = content.get("loads")
    items = items if isinstance(items, list) else [content]
    return [_row(item, worker, ts) for item in items if isinstance(item, dict) and ts is not None]


def _row(item: Row, worker: str, ts: float) -> Row:
    nested = item.get("disaggregation")
    figures = {**item, **nested} if isinstance(nested, dict) else item
    row: Row = {"worker": worker, "ts": ts, "rest": json.dumps(item, ensure_ascii=False)}
    for column, names in COLUMNS.items():
        row[column] = next((v for v in (_number(figures.get(name)) for name in names) if v is not None), None)
        if row[column] is not None and column != "token_usage":
            row[column] = int(row[column])
    return row


def _from_metrics(text: str, worker: str, ts: float | None) -> list[Row]:
    by_rank: dict[str, Row] = defaultdict(dict)
    for line in text.splitlines():
        match = _METRIC.match(line)
        if match is not None and not match[1].endswith(("_bucket", "_sum", "_count", "_total")):
            rank = _DP_RANK.search(match[2] or "")
            try:
                value = float(match[3])
            except ValueError:
                continue
            by_rank[rank[1] if rank else ""].setdefault(match[1], value if abs(value) < 1e18 else None)
    return [_row(figures, worker, ts) for figures in by_rank.values() if ts is not None]


def _time(value: Any) -> float | None:
    if isinstance(value, str) and (iso := _ISO.match(value)) is not None:
        year, month, day, hour, minute = (int(iso[i]) for i in range(1, 6))
        return timegm((year, month, day, hour, minute, 0)) + float(iso[6])
    return _number(value)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e18 else None


def _text(path: Path, limit: int = -1) -> str:
    try:
        with open(path, "rb") as handle:
            packed = handle.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else open(path, "rb") as handle:
            return handle.read(limit).decode(errors="replace")
    except (OSError, EOFError) as error:
        raise InputError(path, f"cannot be read: {error}") from None
