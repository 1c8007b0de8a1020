"""SGLang bench_serving's JSON Lines: one line a benchmark, its requests as arrays (`--output-details`; read against SGLang 0.5.21)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from apd_replay.errors import InputError
from apd_replay.replay.failures import kind_of
from apd_replay.warehouse.sources.foreign import ForeignRun, Row, number, objects, whole

NAME = "SGLang bench_serving JSONL"
_SETTINGS = ("backend", "dataset_name", "request_rate", "max_concurrency")


def recognise(first: dict[str, Any]) -> bool:
    return "ttfts" in first or {"mean_ttft_ms", "request_throughput", "completed"} <= first.keys()


def read(file: Path) -> list[ForeignRun]:
    """A run a line. All lines are replicates of one benchmark, or the file is refused."""
    runs, first = [], None
    for line, found in objects(file):
        if not isinstance(found.get("ttfts"), list):
            raise InputError(file, "holds averages only", line=line, column="ttfts", remedy="run bench_serving with --output-details")
        settings = {key: found.get(key) for key in _SETTINGS}
        first = first or settings
        if settings != first:
            other = next(key for key in _SETTINGS if settings[key] != first[key])
            raise InputError(file, f"another benchmark than line 1 ({other} {settings[other]!r}, not {first[other]!r})", line=line, column=other,
                             remedy="import each benchmark from a file of its own")  # fmt: skip
        runs.append(_run(file, line, found, settings))
    if not runs:
        raise InputError(file, "is empty", remedy="expected one JSON object a benchmark")
    return runs


def _run(file: Path, line: int, found: dict[str, Any], settings: dict[str, Any]) -> ForeignRun:
    columns = {key: found.get(key) for key in ("ttfts", "itls", "input_lens", "output_lens", "errors")}
    requests = len(columns["ttfts"] or ())
    for key, values in columns.items():
        if not isinstance(values, list) or len(values) != requests:
            raise InputError(file, f"not a list of {requests} values", line=line, column=key, remedy="expected one value a request, as in ttfts")
    cached = found.get("cached_tokens")
    cached = cached if isinstance(cached, list) and len(cached) == requests else [None] * requests
    rows = [_row(file, line, k, columns, cached[k]) for k in range(requests)]
    info = found.get("server_info")
    says = ["bench_serving keeps no times of requests, only durations: reported_latency_s (TTFT and all inter-token times) and reported_ttft_s; what needs a "
            "request's moment (response, overlap, gaps) is unknown",
            "bench_serving does not tell sessions: every request stands as a session of its own"]  # fmt: skip
    limit = found.get("max_concurrency")
    return ForeignRun("bench_serving", file, rows, says, duration_s=number(found.get("duration"), file, line, "duration"),
                      model=info.get("model_path") if isinstance(info, dict) else None, concurrency=limit if isinstance(limit, int) else None,
                      facts={**settings, "line": line})  # fmt: skip


def _row(file: Path, line: int, k: int, columns: dict[str, Any], cached: Any) -> Row:
    error, ttft, itls = columns["errors"][k], number(columns["ttfts"][k], file, line, "ttfts"), columns["itls"][k]
    # a request that failed early has neither; bench_serving writes 0 and an empty list for it
    answered = not error and ttft is not None
    between = [number(gap, file, line, "itls") or 0.0 for gap in itls] if isinstance(itls, list) else []
    return {
        "request_id": f"{line}-{k}", "session": f"{line}-{k}", "turn": 0, "status": "error" if error else "ok",
        "error_kind": kind_of(str(error), None) if error else None, "error_message": str(error) if error else None,
        "input_tokens": whole(columns["input_lens"][k], file, line, "input_lens"), "output_tokens": whole(columns["output_lens"][k], file, line, "output_lens"),
        "cached_tokens": whole(cached, file, line, "cached_tokens"),
        "reported_ttft_s": ttft if answered else None, "reported_latency_s": ttft + sum(between) if answered and ttft is not None else None,
    }  # fmt: skip
