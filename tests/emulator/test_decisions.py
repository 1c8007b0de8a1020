"""One replay, two worlds: simulated and emulated workers lead the replay to the same decisions where timing does not decide.

Departures lie about 0.1 s apart, ten times what a request takes. Where the machine was so busy that they came in another order, timing did
decide: that attempt proves nothing and is made again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from emulated import experiment, trace

from apd_replay import engines
from apd_replay.configuration import Experiment
from apd_replay.logs import run as parsing
from apd_replay.sim import driver
from apd_replay.trace.model import Trace

DECISIONS = ("path", "prefill_worker", "decode_worker", "admission", "status", "error_kind", "slot_lost", "cached_tokens", "output_tokens", "finish_reason",
             "retractions")  # fmt: skip

ATTEMPTS = 4


def rows(file: Path, *keys: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[k] for k in keys) for row in map(json.loads, file.read_text().splitlines()))


def course(run_dir: Path) -> list[str]:
    """Departures and ends of all turns, in their order."""
    moments = []
    for name, left_t, ended_t in rows(run_dir / "requests.jsonl", "request_id", "dispatched_t", "finished_t"):
        moments += [(left_t, f"{name} leaves"), (ended_t, f"{name} ends")]
    return [what for _, what in sorted(moments)]


def both(chosen: Experiment, turns: Trace, folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Checks that both worlds decide alike; the decisions."""
    driver.run(chosen, turns, 1, folder / "sim")
    for attempt in range(ATTEMPTS):
        where = folder / f"emulator-{attempt}"
        engines.run(chosen, turns, 1, where)
        if course(where) == course(folder / "sim"):
            break
    else:
        pytest.fail(f"in {ATTEMPTS} attempts the turns never came in the planned order: {course(where)}")
    out = {}
    for name, file, keys in (
        ("requests", "requests.jsonl", ("request_id", *DECISIONS)),
        ("admissions", "structural/admission-events.jsonl", ("session", "D", "can_admit", "available_tokens", "evicted_session_count")),
        ("bindings", "structural/session-d-binding.jsonl", ("session", "D", "turn_id")),
    ):
        simulated, emulated = rows(folder / "sim" / file, *keys), rows(where / file, *keys)
        assert emulated == simulated, f"{name}: (emulated, simulated) {[p for p in zip(emulated, simulated, strict=False) if p[0] != p[1]][:5]}"
        out[name] = simulated
    return out


def test_resident_sessions_with_room_for_all(tmp_path: Path) -> None:
    turns = trace({f"s{k}": [(1500 + 300 * k + 400 * t, 20) for t in range(4)] for k in range(3)}, gap_s=0.3, start_gap_s=0.1)
    found = both(experiment(cluster={"prefill": 2, "decode": 2}), turns, tmp_path)
    assert sum(row[1] == "direct" for row in found["requests"]) == 9 and {row[2] for row in found["requests"]} == {"prefill-0", "prefill-1"}


def test_resident_sessions_in_pools_too_small_for_them(tmp_path: Path) -> None:
    turns = trace({f"s{k}": [(2000 + 900 * t, 30) for t in range(4)] for k in range(3)}, gap_s=0.3, start_gap_s=0.1)
    found = both(experiment(cluster={"prefill": 1, "decode": 1, "kv_pool_tokens": 7000}), turns, tmp_path)
    paths = [row[1] for row in found["requests"]]
    assert paths.count("fallback") >= 3 and paths.count("direct") >= 1, "the case must be one that evicts and refuses"
    assert any(row[4] for row in found["admissions"]), "no admission evicted anybody"


def test_unified_workers_behind_the_replays_own_cache_aware_policy(tmp_path: Path) -> None:
    turns = trace({f"s{k}": [(1500 + 300 * k + 400 * t, 20) for t in range(4)] for k in range(3)}, gap_s=0.3, start_gap_s=0.1)
    found = both(experiment("dp", cluster={"workers": 2}), turns, tmp_path)
    assert {row[1] for row in found["requests"]} == {"dp"}
    assert sum(row[8] > 1000 for row in found["requests"]) == 9, "follow-up turns find their history in the cache"


def test_an_emulated_runs_logs_are_read_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = trace({"a": [(1500, 90), (2000, 90)]}, gap_s=0.05)
    engines.run(experiment(cluster={"prefill": 1, "decode": 1}), turns, 1, tmp_path / "run")
    summary = parsing.parse_run(tmp_path / "run", tmp_path / "tables")
    assert (summary.unknown, summary.files) == (0, 3)
    manifest = json.loads((tmp_path / "run/run.json").read_text())
    assert (manifest["engine"], manifest["status"], manifest["requests"]) == ("emulator", "complete", 2)
    assert set(manifest["workers"]) >= {"prefill-0", "decode-0"} and manifest["workers_ended"] == {}
