"""A results folder to try SQL on: `python docs/example_results.py FOLDER`, without a simulator or a GPU.

Two experiments, three replicates each, six sessions of five turns; every figure follows from a formula, so that the answers in
docs/sql.md stay what they are. KVC has two D's: large sessions sit on decode-1, are evicted, fall back, and from turn 3 on their
link prefill-1 > decode-1 has failed. The runs come in through `apd import`, the same door as anybody else's.

    python docs/example_results.py --answers    write the answers of docs/sql.md anew
"""

from __future__ import annotations

import datetime
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from apd_replay.warehouse import database
from apd_replay.warehouse import query as asking
from apd_replay.warehouse.importing import import_runs

START_TS = 1764500000.0
SESSIONS = 6
TURNS = 5
GAP_S = 4.0
POOL_TOKENS = 100_000
PAGE = Path(__file__).with_name("sql.md")
BLOCK = re.compile(r"```sql\n(?P<query>.*?)```\n\n```text\n(?P<answer>.*?)```", re.DOTALL)
Row = dict[str, Any]


def make(results: Path) -> Path:
    """Write the folder; all six runs and their trace."""
    with tempfile.TemporaryDirectory() as scratch:
        runs = [_run(Path(scratch), name, n) for name in ("E0", "E6") for n in (1, 2, 3)]
        trace = Path(scratch) / "example.jsonl"
        trace.write_text("".join(json.dumps(turn) + "\n" for turn in _trace()))
        import_runs(runs, results, trace_file=trace, say=lambda _: None)
    database.build(results)
    return results


def _input_tokens(s: int, turn: int) -> int:
    return 2000 * (s + 1) + 1000 * turn


def _trace() -> list[Row]:
    return [{"session_id": f"s{s}", "turn": turn, "timestamp": s + GAP_S * turn, "input_length": _input_tokens(s, turn), "output_length": 100,
             "hash_ids": list(range(1000 * s, 1000 * s - (-_input_tokens(s, turn) // 512)))} for s in range(SESSIONS) for turn in range(TURNS)]  # fmt: skip


def _run(scratch: Path, experiment: str, replicate: int) -> Path:
    kvc = experiment == "E0"
    rows = [_request(s, turn, replicate, kvc) for s in range(SESSIONS) for turn in range(TURNS)]
    directory = scratch / experiment / str(replicate)
    (directory / "structural").mkdir(parents=True)
    (directory / "logs").mkdir()
    _lines(directory / "requests.jsonl", rows)
    if kvc:
        asked = [r for r in rows if r["turn"] > 0]
        _lines(directory / "structural/admission-events.jsonl", [
            {"timestamp": START_TS + r["dispatched_t"] - 0.01, "session": r["session"], "D": r["decode_worker"], "can_admit": r["path"] == "direct",
             "queue_depth": r["turn"], "pause_ms": 0.0, "latency_s": 0.002 * (r["turn"] + 1), "available_tokens": POOL_TOKENS - r["input_tokens"], "evicted_session_count": 0}
            for r in asked])  # fmt: skip
        _logs(directory / "logs", rows)
    duration = max(r["finished_t"] for r in rows)
    manifest = {"experiment": experiment, "replicate": replicate, "engine": "sim", "status": "complete", "trace": "example", "trace_digest": "", "cluster": "2p2d" if kvc else "4dp",
                "hardware": "example", "policy": "kv_aware" if kvc else "cache_aware", "time_scale": 1, "concurrency": 8, "seed": replicate, "model": "example", "started_ts": START_TS,
                "duration_s": duration, "requests": len(rows), "errors": sum(r["status"] == "error" for r in rows), "versions": {}, "config": {}}  # fmt: skip
    (directory / "run.json").write_text(json.dumps(manifest))
    return directory


def _request(s: int, turn: int, replicate: int, kvc: bool) -> Row:
    """Small sessions are appended directly; the two largest fall back, and fail from turn 3 on."""
    large = s >= SESSIONS - 2
    path = "dp" if not kvc else "seed" if turn == 0 else "fallback" if large or (s == 3 and turn % 2) else "direct"
    fails = kvc and large and turn >= 3
    due = s + (GAP_S + 1) * turn
    sent = due + 0.05 * replicate + (0.5 if path == "fallback" else 0.0)
    ttft = {"dp": 0.2, "seed": 0.3, "direct": 0.05, "fallback": 0.8}[path] + 0.01 * s + 0.001 * turn
    took = 30.0 if fails and turn == 3 and s == 4 else 0.5 if fails else ttft + 0.1 * (s + 1) + 0.05 * replicate
    real = fails and took == 30.0
    return {
        "request_id": f"s{s}-{turn}", "session": f"s{s}", "turn": turn, "path": path, "prefill_worker": None if not kvc else f"prefill-{int(large)}",
        "decode_worker": f"decode-{int(large)}" if kvc else f"worker-{s % 4}", "scheduled_t": due, "dispatched_t": sent, "first_token_t": None if fails else sent + ttft,
        "finished_t": sent + took, "input_tokens": _input_tokens(s, turn), "cached_tokens": _input_tokens(s, turn - 1) if turn and path in ("direct", "dp") else 0,
        "output_tokens": None if fails else 100, "admission": "none" if path in ("dp", "seed") else "admitted" if path == "direct" else "rejected", "pause_ms": 0.0,
        "bootstrap_room": 1000 * replicate + 10 * s + turn + 1 if path in ("seed", "fallback") else None, "status": "error" if fails else "ok",
        "error_kind": None if not fails else "kv_transfer" if real else "peer_dead", "error_message": None if not fails else "Failed to send" if real else "could be dead",
        "asked_output_tokens": 100, "finish_reason": None if fails else "length", "retractions": 0, "slot_lost": False,
    }  # fmt: skip


def _logs(folder: Path, rows: list[Row]) -> None:
    """What the workers say of it, in SGLang's words."""
    for d in (0, 1):
        said = [(0.0, f"server_args=ServerArgs(model_path='example', disaggregation_mode='decode', tp_size=1, host='127.0.0.1', port={30100 + d})"),
                (0.0, f"max_total_num_tokens={POOL_TOKENS}, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=128, context_len=131072")]  # fmt: skip
        for k in range(10):
            usage = 0.5 + 0.05 * k if d else 0.3
            said.append((3.0 * k, f"Decode batch, #running-req: {k % 3 + 1}, #token: {int(usage * POOL_TOKENS)}, token usage: {usage:.2f}, pre-allocated usage: 0.00, "
                         f"#prealloc-req: 0, #transfer-req: {k % 2}, #retracted-req: 0, cuda graph: True, gen throughput (token/s): {90 + k}.00, #queue-req: 0"))  # fmt: skip
        said += [(5.0 + k, f"Session trim: evicted {k + 1} idle sessions, {1000 * (k + 1)} tokens freed") for k in range(4 * d)]
        _log(folder / f"decode-{d}.log", said)
    for p in (0, 1):
        said = [(0.0, f"server_args=ServerArgs(model_path='example', disaggregation_mode='prefill', tp_size=1, host='127.0.0.1', port={30200 + p})")]
        for r in (r for r in rows if r["status"] == "error" and r["prefill_worker"] == f"prefill-{p}"):
            room = r["bootstrap_room"]
            why = f"Failed to send kv chunk of {room} to 127.0.0.1:40001" if r["error_kind"] == "kv_transfer" else "Decode instance could be dead, remote mooncake session 127.0.0.1:15001 is not alive"
            said.append((r["finished_t"], f"Prefill transfer failed for request rank=0 req.rid='{r['request_id']}' req.bootstrap_room={room} with exception KVTransferError(bootstrap_room={room}): {why}"))
        _log(folder / f"prefill-{p}.log", said)


def _log(file: Path, said: list[tuple[float, str]]) -> None:
    stamps = ((datetime.datetime.fromtimestamp(START_TS + t, datetime.UTC), text) for t, text in sorted(said))
    file.write_text("".join(f"[{stamp:%Y-%m-%d %H:%M:%S}] {text}\n" for stamp, text in stamps))


def _lines(file: Path, rows: list[Row]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def answered(page: str, results: Path) -> str:
    """The page with every answer as the example folder gives it."""

    def block(match: re.Match[str]) -> str:
        return f"```sql\n{match['query']}```\n\n```text\n{asking.as_text(asking.ask(results, match['query']))}```"

    return BLOCK.sub(block, page)


if __name__ == "__main__":
    if sys.argv[1:] == ["--answers"]:
        with tempfile.TemporaryDirectory() as folder:
            PAGE.write_text(answered(PAGE.read_text(encoding="utf-8"), make(Path(folder))), encoding="utf-8")
    elif len(sys.argv) == 2 and not sys.argv[1].startswith("-"):
        print(make(Path(sys.argv[1])))
    else:
        sys.exit(__doc__)
