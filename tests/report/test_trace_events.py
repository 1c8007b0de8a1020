"""The Chrome trace of a run: what the format asks, what the run holds, nothing more."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from conftest import HOSTILE
from jsonschema import Draft202012Validator

from apd_replay.errors import InputError
from apd_replay.report import trace_events
from apd_replay.report.command import trace_events as command

STARTED = 1777996800.0
EVENT = {
    "type": "object",
    "required": ["ph", "pid", "tid", "name"],
    "properties": {"ph": {"enum": ["M", "X", "C", "i"]}, "pid": {"type": "integer", "minimum": 1}, "tid": {"type": "integer", "minimum": 0}, "name": {"type": "string", "minLength": 1},
                   "ts": {"type": "number", "minimum": 0}, "dur": {"type": "number", "minimum": 0}, "args": {"type": "object"}},
    "allOf": [
        {"if": {"properties": {"ph": {"const": "X"}}}, "then": {"required": ["ts", "dur", "cat"]}},
        {"if": {"properties": {"ph": {"const": "C"}}}, "then": {"required": ["ts", "args"], "properties": {"args": {"additionalProperties": {"type": "number"}}}}},
        {"if": {"properties": {"ph": {"const": "i"}}}, "then": {"required": ["ts", "s"]}},
    ],
}  # fmt: skip
SCHEMA = {"type": "object", "required": ["traceEvents", "otherData"], "properties": {"traceEvents": {"type": "array", "items": EVENT}}}
LOG = """\
[2026-05-05 16:00:00] server_args=ServerArgs(model_path='m', disaggregation_mode='decode', tp_size=1)
[2026-05-05 16:00:01] Decode batch, #running-req: 2, #token: 500, token usage: 0.50, pre-allocated usage: 0.10, #prealloc-req: 0, #transfer-req: 3, #retracted-req: 0, cuda graph: True, gen throughput (token/s): 10.00, #queue-req: 1
[2026-05-05 16:00:02] Session trim: evicted 1 idle sessions, 100 tokens freed
[2026-05-05 16:00:03] Decode batch, #running-req: 1, #token: 900, token usage: 0.90, pre-allocated usage: 0.10, #prealloc-req: 0, #transfer-req: 0, #retracted-req: 0, cuda graph: True, gen throughput (token/s): 10.00, #queue-req: 0
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run whose requests overlap on one D, with a failed one and one that was cut."""
    folder = tmp_path / "run"
    (folder / "logs").mkdir(parents=True)
    (folder / "structural").mkdir()
    rows = []
    for s, session in enumerate(HOSTILE[:4]):
        for turn in range(3):
            start = 0.1 * s + 1.5 * turn
            status = "error" if (s, turn) == (1, 1) else "truncated" if (s, turn) == (3, 2) else "ok"
            rows.append(
                {
                    "request_id": f"{s}-{turn}",
                    "session": session,
                    "turn": turn,
                    "path": "direct" if turn else "seed",
                    "prefill_worker": "prefill-0",
                    "decode_worker": "decode-0",
                    "scheduled_t": start,
                    "dispatched_t": start + 0.05,
                    "first_token_t": start + 0.2 if status == "ok" else None,
                    "finished_t": None if status == "truncated" else start + 1.2,
                    "input_tokens": 10,
                    "cached_tokens": 0,
                    "output_tokens": 5,
                    "admission": "none",
                    "pause_ms": 0.0,
                    "bootstrap_room": None,
                    "status": status,
                    "error_kind": "out_of_memory" if status == "error" else None,
                    "error_message": None,
                }
            )
    (folder / "requests.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (folder / "structural/backpressure-events.jsonl").write_text(
        json.dumps({"timestamp": STARTED + 1.0, "D": "decode-0", "sleep_ms": 200.0, "queue_depth_at_signal": 9}) + "\n"
    )
    (folder / "logs/decode-0.log").write_text(LOG)
    (folder / "run.json").write_text(
        json.dumps(
            {
                "experiment": "E0",
                "replicate": 1,
                "engine": "imported",
                "status": "complete",
                "trace": "t",
                "trace_digest": "d",
                "started_ts": STARTED,
                "duration_s": 5.0,
                "requests": len(rows),
                "errors": 1,
            }
        )
    )
    return folder


@pytest.fixture
def events(run_dir: Path, tmp_path: Path) -> list[dict[str, Any]]:
    out = tmp_path / "out.json"
    count = trace_events.write(run_dir, out)
    content = json.loads(out.read_text(encoding="utf-8"))
    Draft202012Validator(SCHEMA).validate(content)
    assert content["otherData"]["engine"] == "imported"
    assert count == len(content["traceEvents"])
    return list(content["traceEvents"])


def test_every_request_is_a_slice_on_its_session_and_on_its_worker(events: list[dict[str, Any]]) -> None:
    slices = Counter((e["pid"] == trace_events.SESSIONS_PID) for e in events if e["ph"] == "X" and e["cat"] in ("seed", "direct"))
    assert slices == {True: 12, False: 12}


def test_times_are_microseconds_since_the_start(events: list[dict[str, Any]]) -> None:
    first = next(e for e in events if e["ph"] == "X" and e["cat"] == "seed" and e["pid"] != trace_events.SESSIONS_PID)
    assert (first["ts"], first["dur"]) == (50_000.0, 1_150_000.0)


def test_slices_of_one_thread_nest_or_follow_each_other(events: list[dict[str, Any]]) -> None:
    """Else Perfetto drops them."""
    threads = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            threads[e["pid"], e["tid"]].append((e["ts"], -e["dur"], e["ts"] + e["dur"]))
    lanes = {key for key in threads if key[0] != trace_events.SESSIONS_PID}
    assert len(lanes) == 4, "four sessions in flight at once take four lanes, and lanes are used again"
    for slices in threads.values():
        open_ends: list[float] = []
        for start, _, end in sorted(slices):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 0.2
            open_ends.append(end)


def test_usage_is_a_counter_and_trims_pauses_errors_are_instants(events: list[dict[str, Any]]) -> None:
    usage = [(e["ts"], e["args"]["KV usage"]) for e in events if e["ph"] == "C" and e["name"] == "KV usage"]
    assert [value for _, value in usage] == [0.5, 0.9]
    instants = Counter(e["name"] for e in events if e["ph"] == "i")
    assert instants == {"trim": 1, "pause of 200 ms": 1, "error: out_of_memory": 1}
    trim = next(e for e in events if e["name"] == "trim")
    assert trim["args"]["line"] == "logs/decode-0.log:3"


def test_threads_carry_the_sessions_names_without_control_characters(events: list[dict[str, Any]]) -> None:
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == trace_events.SESSIONS_PID]
    assert names[0] == HOSTILE[0]
    assert names[2] == "nul\\u0000esc\\u001b[31m\\u202eright"
    assert max(map(len, names)) <= 120


def test_same_run_same_bytes(run_dir: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        trace_events.write(run_dir, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_command_names_the_file_after_the_run(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = CliRunner().invoke(command, [str(run_dir)], catch_exceptions=False)
    assert outcome.exit_code == 0
    assert "run.trace.json:" in outcome.output
    assert json.loads((tmp_path / "run.trace.json").read_text())["traceEvents"]


def test_a_run_that_is_not_whole_is_refused_and_nothing_is_written(run_dir: Path, tmp_path: Path) -> None:
    (run_dir / "run.json").unlink()
    with pytest.raises(InputError, match=r"run\.json: .*whole run"):
        trace_events.write(run_dir, tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()


def test_a_run_without_logs_has_its_requests(run_dir: Path, tmp_path: Path) -> None:
    (run_dir / "logs/decode-0.log").unlink()
    trace_events.write(run_dir, tmp_path / "out.json")
    kinds = Counter(e["ph"] for e in json.loads((tmp_path / "out.json").read_text())["traceEvents"])
    assert kinds["X"] > 24 and kinds["C"] == 0
