"""AIPerf's profile_export.jsonl: one line a request with `metadata`, `metrics` and `error` (read against AIPerf 0.13)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from apd_replay.errors import InputError
from apd_replay.replay.failures import kind_of
from apd_replay.warehouse.sources.foreign import SECONDS, ForeignRun, Row, count, number, objects, whole

NAME = "AIPerf profile_export.jsonl"


def recognise(first: dict[str, Any]) -> bool:
    metadata = first.get("metadata")
    return isinstance(metadata, dict) and "request_start_ns" in metadata and "metrics" in first


def read(file: Path) -> list[ForeignRun]:
    """One run. Times are epoch nanoseconds; t = 0 is the first request's start."""
    lines = [(line, found) for line, found in objects(file) if _part(found, "metadata").get("benchmark_phase", "profiling") == "profiling"]
    warm_up = sum(1 for _ in objects(file)) - len(lines)
    starts = [number(_part(found, "metadata").get("request_start_ns"), file, line, "request_start_ns") for line, found in lines]
    known = [s for s in starts if s is not None]
    if not known:
        raise InputError(file, "no request says when it started", column="request_start_ns", remedy="expected AIPerf's per-request records")
    origin = min(known)
    rows = [_row(file, line, found, origin) for line, found in lines]
    cancelled = count(rows, lambda r: r["status"] == "truncated")
    says = ["AIPerf does not say when a turn was due (scheduled_t), so response times are unknown; latencies are from the request's start",
            "AIPerf does not know which worker served a request, nor its path"]  # fmt: skip
    says += [f"{cancelled} requests were cancelled by AIPerf itself: they count as truncated, not as errors"] if cancelled else []
    says += [f"{warm_up} requests of other phases (warm-up) are left out"] if warm_up else []
    return [ForeignRun("aiperf", file, rows, says, started_ts=origin / 1e9)]


def _row(file: Path, line: int, found: dict[str, Any], origin: float) -> Row:
    metadata, metrics, error = _part(found, "metadata"), _part(found, "metrics"), _part(found, "error")

    def moment(key: str) -> float | None:
        at = number(metadata.get(key), file, line, key)
        return None if at is None else round((at - origin) / 1e9, 9)

    def metric(name: str) -> Any:
        return _part(metrics, name).get("value")

    def tokens(*names: str) -> int | None:
        return next((whole(metric(n), file, line, n) for n in names if metric(n) is not None), None)

    session = next((metadata[k] for k in ("x_correlation_id", "conversation_id") if metadata.get(k)), None)
    request = metadata.get("x_request_id") or f"line-{line}"
    start = moment("request_start_ns")
    first = _seconds(file, line, _part(metrics, "time_to_first_token"), "time_to_first_token")
    status = "truncated" if metadata.get("was_cancelled") else "error" if error else "ok"
    message = error.get("message") if error else None
    return {
        "request_id": str(request), "session": str(session or request), "turn": whole(metadata.get("turn_index"), file, line, "turn_index") or 0,
        "dispatched_t": start, "first_token_t": None if start is None or first is None else round(start + first, 9), "finished_t": moment("request_end_ns"),
        "input_tokens": tokens("input_sequence_length", "error_isl"), "output_tokens": tokens("output_sequence_length", "output_token_count"),
        "cached_tokens": tokens("usage_prompt_cache_read_tokens"), "asked_output_tokens": tokens("requested_osl"),
        "status": status, "error_kind": _kind(error) if status == "error" else None, "error_message": None if message is None else str(message),
    }  # fmt: skip


def _kind(error: dict[str, Any]) -> str:
    code = error.get("code")
    if "timeout" in str(error.get("type")).lower():
        return "client_timeout"
    if "connect" in str(error.get("type")).lower():
        return "connection"
    return kind_of(str(error.get("message") or ""), code if isinstance(code, int) else None)


def _seconds(file: Path, line: int, metric: dict[str, Any], name: str) -> float | None:
    value = number(metric.get("value"), file, line, name)
    if value is None:
        return None
    if metric.get("unit") not in SECONDS:
        raise InputError(file, f"unknown unit {metric.get('unit')!r}", line=line, column=name, remedy=f"known: {', '.join(SECONDS)}")
    return value * SECONDS[metric["unit"]]


def _part(found: dict[str, Any], key: str) -> dict[str, Any]:
    part = found.get(key)
    return part if isinstance(part, dict) else {}
