"""`apd replay` starts real servers, replays, stops them; `apd parse` reads what it left; and the simulator decides the same."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from real_servers import experiment, read_trace, requests_of, write_trace

from apd_replay.logs import run as parsing
from apd_replay.sim import driver as simulator

pytestmark = pytest.mark.sglang


def command(folder: Path, name: str, out: Path) -> list[str]:
    return [sys.executable, "-m", "apd_replay", "replay", name, "--replicate", "1", "--config", str(folder / "config/config.yaml"), "--matrix", "one", "--out", str(out)]


def members(group_of: list[int]) -> list[int]:
    """Living processes of these process groups."""
    out = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                state = (process / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if state[0] != "Z" and int(state[2]) in group_of:
                out.append(int(process.name))
    return out


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def read(tables: Path, name: str) -> list[dict[str, Any]]:
    return [row for file in (tables / name).rglob("*.parquet") for row in pq.read_table(file).to_pylist()]


def decisions(rows: list[dict[str, Any]]) -> dict[str, tuple[str | None, str | None]]:
    return {r["request_id"]: (r["prefill_worker"], r["decode_worker"]) for r in rows}


def compared(real: list[dict[str, Any]], simulated: list[dict[str, Any]]) -> str:
    """Turn by turn, where each engine sent it; `*` where they differ."""
    a, b = decisions(real), decisions(simulated)
    lines = ["| turn | real SGLang | simulator | |", "| --- | --- | --- | --- |"]
    for name in sorted(a):
        ways = [" > ".join(w for w in x[name] if w) for x in (a, b)]
        lines.append(f"| {name} | {ways[0]} | {ways[1]} | {'' if ways[0] == ways[1] else '*'} |")
    return "\n".join(lines)


@pytest.mark.parametrize(("cluster", "policy", "logs"), [
    ("cpu-2dp", "cache_aware", ["router", "worker-0", "worker-1"]),
    ("cpu-1p2d", "kv_aware", ["decode-0", "decode-1", "prefill-0"]),
])  # fmt: skip
def test_a_small_trace_end_to_end(cluster: str, policy: str, logs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_trace(tmp_path / "small.jsonl")
    chosen = experiment(tmp_path, trace, cluster=cluster, policy=policy, loads_every_s=1.0)
    out = tmp_path / "run"
    done = subprocess.run(command(tmp_path, chosen.id, out), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    manifest, rows = json.loads((out / "run.json").read_text()), requests_of(out)
    assert (manifest["status"], manifest["engine"], manifest["requests"], manifest["errors"]) == ("complete", "sglang", 20, 0)
    assert {r["status"] for r in rows} == {"ok"} and manifest["versions"]["sglang"] and manifest["versions"]["torch"]
    assert manifest["workers_ended"] == {} and manifest["client"]["cpu_share"] < 0.5
    assert sorted(p.stem for p in (out / "logs").glob("*.log")) == logs
    assert all(r["decode_worker"] is not None for r in rows), "the router's choice is known from the worker's own word"
    for name in {r["session"] for r in rows}:
        mine = sorted((r for r in rows if r["session"] == name), key=lambda r: r["turn"])
        assert len({r["decode_worker"] for r in mine}) == 1
        for before, after in itertools.pairwise(mine):
            assert after["scheduled_t"] >= before["finished_t"] and after["cached_tokens"] >= before["input_tokens"] - 1

    parsing.parse_run(out, tmp_path / "tables")
    assert len(read(tmp_path / "tables", "requests")) == 20
    assert not read(tmp_path / "tables", "unknown_lines")
    samples = read(tmp_path / "tables", "worker_samples")
    assert {"prefill", "decode"} == {s["kind"] for s in samples}
    assert {e["kind"] for e in read(tmp_path / "tables", "worker_events")} >= {"ready", "pool_size"}
    assert {row["worker"] for row in read(tmp_path / "tables", "loads")} == {n for n in logs if n[0] in "wd"}
    transfers = read(tmp_path / "tables", "transfers")
    rooms = {r["bootstrap_room"] for r in rows} - {None}
    assert {t["outcome"] for t in transfers if t["room"] in rooms} <= {"ok"} and len([t for t in transfers if t["room"] in rooms]) == len(rooms)

    simulated = tmp_path / "simulated"
    twin = experiment(tmp_path, trace, cluster=cluster, policy=policy, engine="sim")
    simulator.run(twin, read_trace(trace, twin), 1, simulated)
    with capsys.disabled():
        print(f"\n{cluster}, {policy}\n{compared(rows, requests_of(simulated))}")
    if policy == "kv_aware":  # sessions start far enough apart that their order is the trace's
        assert decisions(rows) == decisions(requests_of(simulated))
    else:  # which worker a session starts on depends on what is in flight just then; that it stays there does not
        assert len({r["decode_worker"] for r in requests_of(simulated) if r["session"] == "s0"}) == 1


@pytest.mark.parametrize("moment", ["while the servers import", "when they are ready"])
def test_no_server_outlives_a_replay_that_was_killed(moment: str, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "small.jsonl", sessions=1, turns=30)
    chosen = experiment(tmp_path, trace, cluster="one", policy="round_robin")
    out = tmp_path / "run"
    replay = subprocess.Popen(command(tmp_path, chosen.id, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 300
        log = out / "logs/worker-0.log"

        def reached() -> bool:
            if moment == "when they are ready":
                return log.exists() and "fired up" in log.read_text()
            return len(members(children(replay.pid))) >= 5  # the scheduler and the detokenizer have been started, and not much more

        while not reached():
            assert replay.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        groups = children(replay.pid)
    finally:
        replay.send_signal(signal.SIGKILL)
        replay.wait()
    deadline = time.monotonic() + 15
    while members(groups) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = members(groups)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
    assert not (out / "run.json").exists()
