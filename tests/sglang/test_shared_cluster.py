"""Real prefill, decode and unified workers, started once. The tests run in this order: the later ones break things."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from real_servers import (
    CHUNK_TOKENS,
    SMALL_POOL_TOKENS,
    TIMEOUT_S,
    Cluster,
    experiment,
    read_trace,
    requests_of,
    tokens,
    write_trace,
)
from sockets import listening

from apd_replay.cluster.run import run
from apd_replay.logs import run as parsing

pytestmark = pytest.mark.sglang


def output(response: httpx.Response) -> list[int]:
    assert response.status_code == 200, response.text
    return response.json()["output_ids"]


def logprobs(response: httpx.Response) -> list[float]:
    return [entry[0] for entry in response.json()["meta_info"]["output_token_logprobs"]]


def replay(folder: Path, trace: Path, **settings: Any) -> Path:
    chosen = experiment(folder, trace, **settings)
    out = folder / "run"
    run(chosen, read_trace(trace, chosen), 1, out)
    return out


def events(log: str, folder: Path, name: str) -> list[dict[str, Any]]:
    """What the project's own parser finds in a worker's log, as rows of worker_events."""
    run_dir = folder / "parsed"
    (run_dir / "logs").mkdir(parents=True)
    (run_dir / "structural").mkdir()
    (run_dir / "logs" / f"{name}.log").write_text(log, encoding="utf-8")
    (run_dir / "requests.jsonl").touch()
    (run_dir / "run.json").write_text('{"experiment": "x", "replicate": 1, "started_ts": 0.0}')
    parsing.parse_run(run_dir, folder / "tables")
    rows = [row for file in (folder / "tables/worker_events").rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    unknown = [row for file in (folder / "tables/unknown_lines").rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert not unknown, unknown
    return rows


def test_the_model_depends_on_its_history(cluster: Cluster) -> None:
    tail = tokens(0, 30)
    answers = {tuple(output(cluster.generate("worker-0", tokens(k, 300) + tail))) for k in range(1, 9)}
    assert len(answers) == 8, "another history must give other tokens, or the tests of the hand-over prove nothing"


def test_prefill_and_decode_give_what_a_unified_worker_gives(cluster: Cluster) -> None:
    for seed, length in ((11, 40), (12, 700), (13, 3000)):  # one token block, many, more than one prefill chunk
        prompt = tokens(seed, length)
        whole = cluster.generate("worker-0", prompt, return_logprob=True)
        _, decoded = cluster.handed_over("prefill-0", "decode-0", prompt, return_logprob=True)
        assert output(decoded) == output(whole)
        assert logprobs(decoded) == pytest.approx(logprobs(whole), abs=1e-4)
        longer = prompt + output(whole) + tokens(seed + 50, 20)  # the next turn, on both sides' caches
        whole = cluster.generate("worker-0", longer, return_logprob=True)
        _, decoded = cluster.handed_over("prefill-0", "decode-0", longer, return_logprob=True)
        assert output(decoded) == output(whole)
        assert logprobs(decoded) == pytest.approx(logprobs(whole), abs=1e-4)
        assert decoded.json()["meta_info"]["cached_tokens"] >= length - 1


def test_a_streaming_session_keeps_its_tokens_on_a_unified_worker(cluster: Cluster) -> None:
    url = cluster.specs["worker-0"].address.url
    session = httpx.post(f"{url}/open_session", json={"capacity_of_str_len": 8192, "streaming": True}, timeout=TIMEOUT_S).json()
    total, appended = 0, tokens(21, 200)
    for k in range(4):
        answer = cluster.generate("worker-0", appended, session_params={"id": session})
        meta, count = answer.json()["meta_info"], len(output(answer))
        assert meta["prompt_tokens"] == total + len(appended)
        assert total - 1 <= meta["cached_tokens"] <= total
        total = meta["prompt_tokens"] + count
        appended = tokens(22 + k, 10)
    httpx.post(f"{url}/close_session", json={"session_id": session}, timeout=TIMEOUT_S)
    assert cluster.generate("worker-0", appended, session_params={"id": session}).status_code == 400


def test_nothing_listens_beyond_the_loopback_interface(cluster: Cluster) -> None:
    found = {name: listening(process.pid) for name, process in cluster.servers.processes.items()}
    assert all(len(addresses) >= 2 for addresses in found.values()), found
    beyond = {name: [a for a in addresses if not a.startswith("127.0.0.1:")] for name, addresses in found.items()}
    assert not any(beyond.values()), beyond


def test_servers_that_somebody_else_runs_are_replayed_against(cluster: Cluster, tmp_path: Path) -> None:
    out = replay(tmp_path, write_trace(tmp_path / "t.jsonl", sessions=4, turns=3, gap_s=0.3), cluster="two-one", sglang=cluster.external(["prefill-0", "prefill-1"], ["decode-0"]))
    rows = requests_of(out)
    assert len(rows) == 12 and {r["status"] for r in rows} == {"ok"}, rows
    assert {r["prefill_worker"] for r in rows} == {"prefill-0", "prefill-1"}
    for row in rows:
        assert row["output_tokens"] == row["asked_output_tokens"] and row["scheduled_t"] <= row["dispatched_t"] < row["first_token_t"] <= row["finished_t"]
    assert max(r["cached_tokens"] for r in rows) > 0


def test_a_decode_pool_that_is_too_small_retracts_and_refuses(cluster: Cluster, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    lines = [(f"s{k}", 0.0, 100, 120) for k in range(4)] + [("huge", 0.2, SMALL_POOL_TOKENS + 200, 4)]
    trace.write_text("".join(f'{{"session_id": "{s}", "timestamp": {t}, "input_length": {i}, "output_length": {o}}}\n' for s, t, i, o in lines))
    before = len(cluster.log("decode-1"))
    out = replay(tmp_path, trace, cluster="one-one", start_spread_s=0.0, sglang=cluster.external(["prefill-1"], ["decode-1"]))
    rows = {r["session"]: r for r in requests_of(out)}
    assert (rows["huge"]["error_kind"], "exceeds the maximum" in rows["huge"]["error_message"]) == ("http_4xx", True), rows["huge"]
    others = [r for s, r in rows.items() if s != "huge"]
    assert {r["status"] for r in others} == {"ok"}, others
    assert sum(r["retractions"] or 0 for r in others) > 0
    found = events(cluster.log("decode-1")[before:], tmp_path, "decode-1")
    retracted = [e for e in found if e["kind"] == "retract"]
    assert retracted and all(e["worker"] == "decode-1" for e in retracted)


def wait_for(what: str, condition: Any, within_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {within_s:g} s"
        time.sleep(0.2)


def test_one_failed_send_latches_a_link_until_a_probe_clears_it(cluster: Cluster, tmp_path: Path) -> None:
    """Claim s8 on real servers: D stops while KV of two long prompts is on its way, each P gives up after MC_TRANSFER_TIMEOUT, D goes
    on; and from then on a P refuses it at once, in the same run. With the probe P finds out; without it never."""
    long, turns = 16 * CHUNK_TOKENS, 50  # the first pieces are on their way while the others are computed
    trace = tmp_path / "t.jsonl"
    lines = [("long-a", 0.0, long), ("long-b", 0.1, long), *(("short", 0.2 + k, 50 + 10 * k) for k in range(turns))]
    trace.write_text("".join(f'{{"session_id": "{s}", "timestamp": {t}, "input_length": {n}, "output_length": 2}}\n' for s, t, n in lines))
    before = {p: len(cluster.log(p)) for p in ("prefill-0", "prefill-1")}
    decode = cluster.servers.processes["decode-0"]

    def stop_while_sending() -> None:
        wait_for("the third chunk", lambda: all(cluster.log(p)[n:].count(f"#new-token: {CHUNK_TOKENS},") >= 3 for p, n in before.items()))
        os.killpg(decode.pid, signal.SIGSTOP)
        try:
            wait_for("the latch", lambda: all(re.search(r"Session \S+:\d+ failed\.", cluster.log(p)) for p in before))
        finally:
            os.killpg(decode.pid, signal.SIGCONT)

    with ThreadPoolExecutor(1) as aside:
        stopped = aside.submit(stop_while_sending)
        out = replay(tmp_path, trace, cluster="two-one", start_spread_s=0.0, sglang=cluster.external(["prefill-0", "prefill-1"], ["decode-0"]))
        stopped.result()

    rows = {r["request_id"]: r for r in requests_of(out)}
    assert [rows[name]["error_kind"] for name in ("long-a-0", "long-b-0")] == ["kv_transfer", "kv_transfer"]
    after = {p: [r["error_kind"] or r["status"] for r in rows.values() if r["session"] == "short" and r["prefill_worker"] == p] for p in before}
    assert after["prefill-1"].count("peer_dead") >= turns // 2 - 3, after
    assert set(after["prefill-0"]) <= {"peer_dead", "ok"} and after["prefill-0"][-1] == "ok", after  # on a busy machine the probe may be first
    quick = [r["finished_t"] - r["dispatched_t"] for r in rows.values() if r["error_kind"] == "peer_dead"]
    assert sorted(quick)[len(quick) // 2] < 5, "a rejection takes no transfer timeout"

    (tmp_path / "probe").mkdir()
    latched, probed = (events(cluster.log(p)[before[p]:], tmp_path / folder, p) for p, folder in (("prefill-1", ""), ("prefill-0", "probe")))
    kinds = [e["kind"] for e in latched]
    assert kinds.count("link_latched") == 1 and kinds.index("link_latched") < kinds.index("peer_dead") and "peer_recovered" not in kinds
    assert [e["kind"] for e in probed].count("peer_recovered") == 1


def test_a_decode_worker_killed_in_mid_run_is_a_finding_and_not_the_runs_end(cluster: Cluster, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", sessions=4, turns=6, prompt=60, append=10, output=6, gap_s=0.5)
    victim = cluster.servers.processes["decode-0"]
    out = tmp_path / "run"

    def kill_when_half_done() -> None:
        file = out / "requests.jsonl"
        wait_for("half of the run", lambda: file.exists() and (file.read_text().count('"decode-0"') >= 4))
        os.killpg(victim.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_when_half_done)
    killer.start()
    replay(tmp_path, trace, cluster="one-two", sglang=cluster.external(["prefill-0"], ["decode-0", "decode-1"]))
    killer.join()
    rows = requests_of(out)
    assert len(rows) == 24, "every turn has its row"
    dead = [r for r in rows if r["decode_worker"] == "decode-0"]
    assert {r["status"] for r in dead} == {"ok", "error"}
    failed = {(r["error_kind"], r["error_message"]) for r in dead if r["status"] == "error"}
    assert {kind for kind, _ in failed} <= {"connection", "kv_transfer", "peer_dead"}, failed
    assert {r["status"] for r in rows if r["decode_worker"] == "decode-1"} == {"ok"}
    assert "decode-0" in cluster.servers.ended() and (out / "run.json").exists()
