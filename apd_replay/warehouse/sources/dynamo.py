"""Dynamo's replay report: one line a simulated request (`report_jsonl_path`; read against Dynamo 1.6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from apd_replay.warehouse.sources.foreign import ForeignRun, Row, count, number, objects, whole

NAME = "Dynamo replay report JSONL"
_STATUS = {"completed": "ok", "failed": "error"}


def recognise(first: dict[str, Any]) -> bool:
    return {"terminal_status", "arrival_time_ms"} <= first.keys()


def read(file: Path) -> list[ForeignRun]:
    """One run. Times are milliseconds of the simulation."""
    rows = [_row(file, line, found) for line, found in objects(file)]
    undispatched = count(rows, lambda r: r["dispatched_t"] is None)
    alone = count(rows, lambda r: r["session"] == r["request_id"])
    says = ["Dynamo's replay is a simulation: its times are virtual, and no date belongs to them",
            "Dynamo does not tell direct appends from full prefills: path is known for unified workers only"]  # fmt: skip
    says += [f"{undispatched} of {len(rows)} requests do not say when they were dispatched: their latency is Dynamo's own figure, from arrival"] if undispatched else []
    says += [f"{alone} requests name no session: each stands as one of its own"] if alone else []
    return [ForeignRun("dynamo", file, rows, says)]


def _row(file: Path, line: int, found: dict[str, Any]) -> Row:
    def seconds(key: str) -> float | None:
        value = number(found.get(key), file, line, key)
        return None if value is None else value / 1e3

    prefill, decode = (whole(found.get(f"{side}_worker_idx"), file, line, f"{side}_worker_idx") for side in ("prefill", "decode"))
    pools = {visit.get("pool") for visit in found.get("routing_history") or () if isinstance(visit, dict)}
    unified = pools == {"agg"}
    request = str(found.get("uuid") or found.get("request_id") or f"line-{line}")
    status = _STATUS.get(str(found.get("terminal_status")), "truncated")
    dispatched = seconds("dispatched_at_ms")
    return {
        "request_id": request, "session": str(found.get("session_id") or request), "turn": whole(found.get("turn_index"), file, line, "turn_index") or 0,
        "path": "dp" if unified else None, "prefill_worker": None if prefill is None else f"prefill-{prefill}",
        "decode_worker": None if decode is None else f"{'worker' if unified else 'decode'}-{decode}",
        "scheduled_t": seconds("arrival_time_ms"), "dispatched_t": dispatched, "first_token_t": seconds("first_token_ms"), "finished_t": seconds("terminal_time_ms"),
        "input_tokens": whole(found.get("input_length"), file, line, "input_length"), "output_tokens": whole(found.get("output_length"), file, line, "output_length"),
        "cached_tokens": whole(found.get("reused_input_tokens"), file, line, "reused_input_tokens"),
        "asked_output_tokens": whole(found.get("requested_output_length"), file, line, "requested_output_length"), "status": status,
        "reported_latency_s": seconds("e2e_latency_ms") if dispatched is None else None, "reported_ttft_s": seconds("ttft_ms") if dispatched is None else None,
    }  # fmt: skip
