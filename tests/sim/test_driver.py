"""Whole simulated runs: what they write, that they repeat to the byte, and that each mechanism does what its switch says."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sim_world import ROOT, crowded, experiment, growing, lines, run, session, trace

from apd_replay import schemas
from apd_replay.errors import RunError
from apd_replay.sim import driver
from apd_replay.sim.cluster import Cluster
from apd_replay.trace.model import Trace


def digest(out: Path) -> str:
    whole = hashlib.sha256()
    for file in sorted(p for p in out.rglob("*") if p.is_file()):
        whole.update(file.relative_to(out).as_posix().encode() + b"\0" + file.read_bytes())
    return whole.hexdigest()


def manifest(out: Path) -> dict[str, Any]:
    return json.loads((out / "run.json").read_text())


# what a run leaves ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["kvc", "dp"])
def test_a_run_leaves_the_files_of_the_contract(tmp_path: Path, kind: str) -> None:
    rows = run(experiment(kind), growing(6, 4), tmp_path)
    kvc = kind == "kvc"
    logs = {f"prefill-{i}" for i in range(2)} | {f"decode-{i}" for i in range(6)} if kvc else {f"worker-{i}" for i in range(8)}
    assert {p.stem for p in (tmp_path / "logs").iterdir()} == logs
    assert {p.stem for p in (tmp_path / "structural").iterdir()} == {"admission-events", "backpressure-events", "session-d-binding"}
    assert len(rows) == 24
    for row in rows.values():
        assert list(row) == [name for name in schemas.REQUESTS.names if not name.startswith("reported_")]  # those are an importing client's own
        assert row["status"] == "ok" and row["path"] in (("seed", "direct", "fallback") if kvc else ("dp",))
        assert row["scheduled_t"] <= row["dispatched_t"] < row["first_token_t"] <= row["finished_t"]
        assert row["output_tokens"] == row["asked_output_tokens"] == 50
    assert set(schemas.RUNS.names) - {"run_id"} <= set(manifest(tmp_path))
    assert manifest(tmp_path)["requests"] == manifest(tmp_path)["planned"] == 24


def test_turns_wait_for_the_answer_before_them_and_then_for_their_gap(tmp_path: Path) -> None:
    rows = run(experiment(gap_scale=4), growing(2, 5, gap_s=6.0), tmp_path)
    for k in range(1, 5):
        assert rows[f"s1-{k}"]["scheduled_t"] == pytest.approx(rows[f"s1-{k - 1}"]["finished_t"] + 1.5, abs=2e-6)


def test_prefix_reuse_across_turns(tmp_path: Path) -> None:
    """A direct turn and a unified worker find the whole history; a P that saw the session finds its prompt."""
    turns = growing(2, 4)
    for row in run(experiment("kvc"), turns, tmp_path / "kvc").values():
        if row["turn"]:
            assert (row["path"], row["cached_tokens"], row["slot_lost"]) == ("direct", row["input_tokens"] - 1500 + 49, False)
    for row in run(experiment("dp"), turns, tmp_path / "dp").values():
        assert row["cached_tokens"] == (row["input_tokens"] - 1500 + 49 if row["turn"] else 0)
    for row in run(experiment("kvc", resident=False, cluster={"prefill": 1}), turns, tmp_path / "pd").values():
        assert (row["path"], row["cached_tokens"]) == (("fallback", row["input_tokens"] - 1500) if row["turn"] else ("seed", 0))


@pytest.mark.parametrize("kind", ["kvc", "dp"])
def test_a_repeated_prompt_hits_fully(tmp_path: Path, kind: str) -> None:
    blocks = [(1, 2, 3, 4)]
    twice = trace(session("a", [2048], hash_ids=blocks, block_size=512), session("b", [2048], start_s=5.0, hash_ids=blocks, block_size=512),
                  session("c", [2048], start_s=9.0, hash_ids=[(9, 2, 3, 4)], block_size=512))  # fmt: skip
    rows = run(experiment(kind, cluster={"prefill": 1} if kind == "kvc" else {}), twice, tmp_path)
    assert [rows[f"{s}-0"]["cached_tokens"] for s in "abc"] == [0, 2047, 0]


# the same every time --------------------------------------------------------------------------------------------------


def test_same_seed_same_bytes_another_seed_other_bytes(tmp_path: Path) -> None:
    turns, keys = crowded()
    chosen = experiment(**keys, start_spread_s=5)
    for name, replicate in (("a", 1), ("b", 1), ("c", 2)):
        run(chosen, turns, tmp_path / name, replicate)
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")


def test_same_bytes_whatever_the_hash_seed(tmp_path: Path) -> None:
    code = ("import sys; from pathlib import Path; sys.path.insert(0, 'tests/sim'); from sim_world import *\n"
            "turns, keys = crowded(); run(experiment(**keys, start_spread_s=5), turns, Path(sys.argv[1]))")  # fmt: skip
    for seed in ("1", "2"):
        subprocess.run([sys.executable, "-c", code, str(tmp_path / seed)], cwd=ROOT, check=True, env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"})
    assert digest(tmp_path / "1") == digest(tmp_path / "2")


def test_simulated_time_has_no_host_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    def forbidden(*_: object) -> float:
        raise AssertionError("the simulator looked at the host's clock")

    turns, keys = crowded()
    chosen = experiment(**keys)
    for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep", "gmtime", "localtime", "strftime"):
        monkeypatch.setattr(time, name, forbidden)
    driver.run(chosen, turns, 1, tmp_path)
    monkeypatch.undo()
    assert manifest(tmp_path)["status"] == "complete"


def test_noise_belongs_to_the_turn_so_that_experiments_are_paired(tmp_path: Path) -> None:
    """One turn alone takes the same time in two experiments of one seed, and another time with another seed."""
    turns = growing(1, 1)
    alone = {}
    for name, replicate, keys in (("a", 1, {}), ("b", 1, {"concurrency": 3, "backpressure": "composite"}), ("c", 2, {})):
        row = run(experiment(**keys), turns, tmp_path / name, replicate)["s0-0"]
        alone[name] = row["finished_t"] - row["dispatched_t"]
    assert alone["a"] == alone["b"] != alone["c"]


# books ----------------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_kv_tokens_are_conserved_at_every_event(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Any small workload on any small cluster: every token of every pool is accounted for, and every turn ends."""
    count = data.draw(st.integers(1, 7), "sessions")
    sessions = []
    for k in range(count):
        prompts = [data.draw(st.integers(50, 3000))]
        for _ in range(data.draw(st.integers(0, 5))):
            prompts.append(max(20, prompts[-1] + data.draw(st.integers(-800, 900))))
        sessions.append(session(f"s{k}", prompts, [data.draw(st.integers(1, 700)) for _ in prompts], gap_s=data.draw(st.floats(0, 3)), start_s=k * 0.3))
    kind = data.draw(st.sampled_from(["kvc", "dp"]))
    shape = {"prefill": 1, "decode": data.draw(st.integers(1, 3))} if kind == "kvc" else {"workers": data.draw(st.integers(1, 3))}
    chosen = experiment(kind, cluster={**shape, "kv_pool_tokens": data.draw(st.integers(3000, 14_000))}, concurrency=data.draw(st.integers(1, 12)),
                        admission=data.draw(st.sampled_from(["coupled", "snapshot", "commit"])), backpressure=data.draw(st.sampled_from(["off", "linear", "composite"])),
                        request_timeout_s=data.draw(st.sampled_from([3.0, 20.0, 120.0])), resident=kind == "kvc" and data.draw(st.booleans()))  # fmt: skip
    out = tmp_path_factory.mktemp("run")
    rows = run(chosen, trace(*sessions), out, after_each=Cluster.check_books)
    assert len(rows) == sum(len(s.turns) for s in sessions) == manifest(out)["planned"]


def test_the_books_check_sees_a_leak(tmp_path: Path) -> None:
    def leak(cluster: Cluster) -> None:
        cluster.decode[0].used += 1
        cluster.check_books()

    with pytest.raises(AssertionError, match="accounted for"):
        run(experiment(), growing(2, 2), tmp_path, after_each=leak)


def test_a_cut_run_marks_what_was_due_and_counts_the_rest(tmp_path: Path) -> None:
    rows = run(experiment(time_limit_s=4.0), growing(4, 20), tmp_path)
    status = Counter(row["status"] for row in rows.values())
    assert status["truncated"] >= 1 and status["error"] == 0
    assert (manifest(tmp_path)["status"], manifest(tmp_path)["duration_s"], manifest(tmp_path)["planned"]) == ("truncated", 4.0, 80)
    assert all(row["finished_t"] is None for row in rows.values() if row["status"] == "truncated")


def test_a_client_that_waits_too_long_gives_up_and_nothing_is_kept(tmp_path: Path) -> None:
    turns, keys = crowded()
    rows = run(experiment(**keys, request_timeout_s=6.0), turns, tmp_path, after_each=Cluster.check_books)
    late = [row for row in rows.values() if row["error_kind"] == "client_timeout"]
    assert late and all(row["finished_t"] - row["dispatched_t"] == pytest.approx(6.0) for row in late)


# the mechanisms -------------------------------------------------------------------------------------------------------

OUTAGE = [{"decode": 0, "from_s": 1.0, "until_s": 60.0}]


def outage(tmp_path: Path, name: str, mechanisms: dict[str, bool] | None = None, cluster: dict[str, Any] | None = None, turns: Trace | None = None,
           **keys: Any) -> dict[str, dict[str, Any]]:
    """Sessions through one P while its D 0 is silent for a minute, and the latch after it."""
    turns = turns or growing(12, 12, gap_s=8.0)
    shape = {"prefill": 1, "decode": 6, **(cluster or {})}
    return run(experiment(resident=False, cluster=shape, link_outages=OUTAGE, mechanisms=mechanisms, **keys), turns, tmp_path / name)


def kinds(rows: dict[str, dict[str, Any]]) -> Counter[str]:
    return Counter(row["error_kind"] for row in rows.values() if row["status"] == "error")


def test_the_latch_makes_every_later_send_on_the_link_fail_and_no_other(tmp_path: Path) -> None:
    rows = outage(tmp_path, "on")
    (latched,) = lines(tmp_path / "on", "prefill-0", "Session 10.0.0.1:15100 failed.")
    first = min(row["finished_t"] for row in rows.values() if row["error_kind"] == "kv_transfer")
    later = [row for row in rows.values() if row["dispatched_t"] > first]
    assert {row["error_kind"] for row in later if row["decode_worker"] == "decode-0"} == {"peer_dead"}
    assert {row["status"] for row in later if row["decode_worker"] != "decode-0"} == {"ok"}
    assert kinds(rows)["kv_transfer"] == 1 and kinds(rows)["peer_dead"] > 5
    for row in later:
        if row["decode_worker"] == "decode-0":
            assert row["finished_t"] - row["dispatched_t"] < 1.0  # rejected at once: no 32 s
    assert latched.startswith("[2026-01-01 00:00:")


def test_p_and_d_log_each_failure_once_under_its_room(tmp_path: Path) -> None:
    rows = outage(tmp_path, "on")
    failed = {str(row["bootstrap_room"]) for row in rows.values() if row["status"] == "error"}
    on_p, on_d = (lines(tmp_path / "on", log, "transfer failed") for log in ("prefill-0", "decode-0"))
    assert len(on_p) == len(on_d) == len(failed)
    assert all(any(f"bootstrap_room={room} " in line for line in on_p) and any(f"bootstrap_room={room} " in line for line in on_d) for room in failed)


def test_without_the_latch_the_link_recovers_with_the_d(tmp_path: Path) -> None:
    rows = outage(tmp_path, "off", {"latch": False})
    assert kinds(rows)["peer_dead"] == 0 < kinds(rows)["kv_transfer"]
    assert all(row["status"] == "ok" for row in rows.values() if row["dispatched_t"] > 61)


def test_the_probe_ends_the_rejections(tmp_path: Path) -> None:
    rows = outage(tmp_path, "probe", {"probe": True})
    assert kinds(rows)["peer_dead"] >= 1
    assert all(row["status"] == "ok" for row in rows.values() if row["dispatched_t"] > 95)
    assert len(lines(tmp_path / "probe", "prefill-0", "Session 10.0.0.1:15100 recovered via probe; un-blacklisted")) == 1


def test_nixl_has_neither_latch_nor_limit(tmp_path: Path) -> None:
    rows = outage(tmp_path, "nixl", cluster={"transfer_backend": "nixl"})
    assert not kinds(rows)


def test_head_of_line_delays_the_other_d_of_the_shard_and_its_switch_ends_that(tmp_path: Path) -> None:
    def slowest(rows: dict[str, dict[str, Any]], decode: int) -> float:
        return max(row["first_token_t"] - row["dispatched_t"] for row in rows.values() if row["decode_worker"] == f"decode-{decode}" and row["status"] == "ok")

    on, off = outage(tmp_path, "on", {"latch": False}), outage(tmp_path, "off", {"latch": False, "head_of_line": False})
    assert slowest(on, 4) > 15 > 3 > slowest(off, 4)
    assert slowest(on, 5) < 3


def test_without_the_transfer_limit_sends_wait_for_the_d(tmp_path: Path) -> None:
    rows = outage(tmp_path, "off", {"transfer_timeout": False})
    assert not kinds(rows)
    assert max(row["first_token_t"] - row["dispatched_t"] for row in rows.values()) > 40


def test_the_waiting_timeout_of_d_ends_a_transfer_after_300_s(tmp_path: Path) -> None:
    chosen = experiment(resident=False, cluster={"prefill": 1, "decode": 1}, request_timeout_s=1000, mechanisms={"transfer_timeout": False},
                        link_outages=[{"decode": 0, "from_s": 0.0, "until_s": 900.0}])  # fmt: skip
    row = run(chosen, growing(1, 1), tmp_path)["s0-0"]
    assert row["error_kind"] == "waiting_timeout" and row["finished_t"] == pytest.approx(300.0, abs=0.1)
    assert lines(tmp_path, "decode-0", "timed out after 300.0s in KVPoll.WaitingForInput")


def test_the_bootstrap_timeout_of_p_ends_the_wait_for_a_full_d(tmp_path: Path) -> None:
    busy, waits = session("busy", [5000], outputs=60_000), session("waits", [64_000], start_s=1.0)
    chosen = experiment(resident=False, cluster={"prefill": 1, "decode": 1, "kv_pool_tokens": 66_000}, request_timeout_s=1000)
    rows = run(chosen, trace(busy, waits), tmp_path)
    assert rows["waits-0"]["error_kind"] == "bootstrap_timeout"
    assert rows["waits-0"]["finished_t"] - rows["waits-0"]["dispatched_t"] == pytest.approx(300.0)
    assert lines(tmp_path, "prefill-0", "timed out after 300.0s in KVPoll.Bootstrapping")


def test_retraction_and_its_switch(tmp_path: Path) -> None:
    turns = trace(session("a", [1500], 2500), session("b", [500], 1200), session("c", [600], 1200))
    shape = {"prefill": 1, "decode": 1, "kv_pool_tokens": 6000}
    on = run(experiment(cluster=shape), turns, tmp_path / "on")
    off = run(experiment(cluster=shape, mechanisms={"retraction": False}), turns, tmp_path / "off")
    assert sum(row["retractions"] for row in on.values()) > 0 == sum(row["retractions"] for row in off.values())
    assert lines(tmp_path / "on", "decode-0", "Retract requests. #retracted_reqs: 1")


def test_admission_cost_slows_the_decoding_and_its_switch_ends_that(tmp_path: Path) -> None:
    turns = trace(session("long", [5000], 3000), *(session(f"s{k}", [100] * 40, 1, gap_s=0.01) for k in range(8)))
    shape = {"prefill": 1, "decode": 1}

    def long(name: str, on: bool) -> float:
        rows = run(experiment(cluster=shape, hardware={"admission_s": 0.01}, mechanisms={"admission_cost": on, "service_noise": False}), turns, tmp_path / name)
        return rows["long-0"]["finished_t"] - rows["long-0"]["first_token_t"]

    calls = 8 * 39
    assert long("on", True) - long("off", False) == pytest.approx(calls * 0.01, rel=0.3)


def test_service_noise_and_its_switch(tmp_path: Path) -> None:
    def times(name: str, replicate: int, on: bool) -> float:
        rows = run(experiment(mechanisms={"service_noise": on}), growing(1, 1), tmp_path / name, replicate)
        return rows["s0-0"]["finished_t"] - rows["s0-0"]["dispatched_t"]

    assert times("a", 1, False) == times("b", 2, False)
    assert times("c", 1, True) != times("d", 2, True)


def test_backpressure_holds_turns_back(tmp_path: Path) -> None:
    turns, keys = crowded()
    rows = run(experiment(**keys, backpressure="composite"), turns, tmp_path)
    pauses = (tmp_path / "structural/backpressure-events.jsonl").read_text().splitlines()
    assert pauses and sum(row["pause_ms"] > 0 for row in rows.values()) == len(pauses)
    assert all(row["pause_ms"] <= 2000.0 for row in rows.values())


def test_one_admission_call_a_follow_up_turn(tmp_path: Path) -> None:
    turns, keys = crowded()
    rows = run(experiment(**keys), turns, tmp_path)
    events = [json.loads(line) for line in (tmp_path / "structural/admission-events.jsonl").read_text().splitlines()]
    assert len(events) == sum(row["turn"] > 0 for row in rows.values())
    assert {row["admission"] for row in rows.values() if row["turn"]} == {"admitted", "rejected"}
    assert sum(e["evicted_session_count"] for e in events) > 0


# settings -------------------------------------------------------------------------------------------------------------


def test_no_logs_keeps_rows_but_no_worker_logs(tmp_path: Path) -> None:
    turns, keys = crowded()
    with_logs = run(experiment(**keys), turns, tmp_path / "all")
    assert run(experiment(**keys, rows="no_logs"), turns, tmp_path / "none") == with_logs
    assert not any((tmp_path / "none/logs").iterdir())


def test_load_snapshots_come_at_their_interval_and_disturb_nothing(tmp_path: Path) -> None:
    turns, keys = crowded()
    plain = run(experiment(**keys), turns, tmp_path / "plain")
    assert run(experiment(**keys, loads_every_s=2.0), turns, tmp_path / "loads") == plain
    rows = [json.loads(line) for line in (tmp_path / "loads/loads.jsonl").read_text().splitlines()]
    assert {row["worker"] for row in rows} == {"decode-0", "decode-1"}
    assert [row["t"] for row in rows if row["worker"] == "decode-0"][:3] == [0.0, 2.0, 4.0]
    assert set(rows[0]) <= set(schemas.LOADS.names) and max(row["token_usage"] for row in rows) > 0.5


def test_a_long_run_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(driver, "PROGRESS_EVERY", 4)
    run(experiment(), growing(2, 5), tmp_path)
    said = capsys.readouterr()
    assert [line.split(" requests")[0] for line in said.err.splitlines()] == ["simulated 4", "simulated 8"] and not said.out


def test_a_run_that_comes_to_a_halt_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "send", lambda *_: None)
    with pytest.raises(RunError, match="came to a halt"):
        run(experiment(), growing(1, 1), tmp_path)
    assert not (tmp_path / "run.json").exists()
