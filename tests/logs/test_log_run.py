"""A run directory becomes its tables: golden figures, clocks, links, transfers, books."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import log_lines as L
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from apd_replay import schemas
from apd_replay.errors import InputError
from apd_replay.logs.clocks import Evidence, decide, matching_shift
from apd_replay.logs.collect import collect
from apd_replay.logs.command import parse
from apd_replay.logs.links import Event, find
from apd_replay.logs.run import parse_run
from apd_replay.logs.server_args import split

SHARED = Path(__file__).parents[3] / "shared"
START = 1777996800.0
FAILED = "kind in ('transfer_error', 'peer_dead', 'waiting_timeout', 'bootstrap_timeout')"


def request(room: int | None, session: str, prefill: str | None, decode: str, sent: float, **other: Any) -> dict[str, Any]:
    row = {"request_id": f"{session}-{room}", "session": session, "turn": 0, "path": "seed", "prefill_worker": prefill, "decode_worker": decode, "scheduled_t": sent, "dispatched_t": sent,
           "first_token_t": None, "finished_t": sent + 40, "input_tokens": 9, "admission": "none", "bootstrap_room": room, "status": "error", "error_kind": "kv_transfer"}  # fmt: skip
    return row | other


def make_run(path: Path, logs: dict[str, list[str]], requests: list[dict[str, Any]], **manifest: Any) -> Path:
    (path / "logs").mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"experiment": "X", "replicate": 2, "started_ts": START, "duration_s": 100.0} | manifest))
    (path / "requests.jsonl").write_text("".join(json.dumps(r) + "\n" for r in requests))
    for name, lines in logs.items():
        (path / "logs" / name).write_text("".join(line + "\n" for line in lines))
    return path


def table(out: Path, name: str, experiment: str = "X", replicate: int = 2) -> list[dict[str, Any]]:
    return pq.ParquetFile(out / name / f"experiment={experiment}" / f"replicate={replicate}" / "part-0.parquet").read().to_pylist()


def failed(side: str, room: int, reason: str, at: str = "16:00:40") -> str:
    o = "" if side == "Prefill" else "decode_req."
    return f"[2026-05-05 {at}] {side} transfer failed for request rank=0 {o}req.rid='a' {o}req.bootstrap_room={room} with exception KVTransferError(bootstrap_room={room}): {reason}"


DEAD = "Decode instance could be dead, remote mooncake session 10.0.0.3:15102 is not alive"


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    maker = SHARED / "golden/make_golden.py"
    if not maker.is_file():
        pytest.skip("the golden maker (../shared/golden) is not here")
    folder = tmp_path_factory.mktemp("golden")
    subprocess.run([sys.executable, str(maker), str(maker.with_name("published.json")), str(folder), "--seed", "7"], check=True, capture_output=True)
    parse_run(folder / "runs/E0/r1", folder / "tables")
    return folder / "tables"


def test_the_golden_run_gives_the_published_figures(golden: Path) -> None:
    run = "experiment=E0/replicate=1/part-0.parquet"
    counts = duckdb.sql(f"select worker, count(*) filter (kind = 'trim'), count(distinct room) filter ({FAILED}), count(distinct room) filter (kind = 'peer_dead') from '{golden}/worker_events/{run}' group by 1 order by 1").fetchall()
    assert [c[1] for c in counts[:6]] == [9, 43, 16, 37, 28, 30]
    assert [c[2] for c in counts] == [0, 4, 153, 29, 90, 93, 367, 2]
    assert [c[3] for c in counts] == [0, 0, 0, 0, 0, 0, 361, 0]
    peaks = duckdb.sql(f"select max(token_usage) from '{golden}/worker_samples/{run}' where worker like 'decode%' group by worker order by worker").fetchall()
    assert [p[0] for p in peaks] == [0.99, 0.99, 0.97, 0.99, 1.0, 1.0]
    outcomes = dict(duckdb.sql(f"select outcome, count(*) from '{golden}/transfers/{run}' where session is not null group by 1").fetchall())
    assert (outcomes["real_failure"], outcomes["rejection"]) == (8, 361)
    latched = duckdb.sql(f"select worker, peer, peer_worker from '{golden}/worker_events/{run}' where kind = 'link_latched'").fetchall()
    assert len(latched) == 8 and all(worker == f"decode-{int(peer[-1])}" for _, peer, worker in latched)


def test_every_table_is_written_with_its_schema_also_without_logs(tmp_path: Path) -> None:
    parse_run(make_run(tmp_path / "run", {}, []), tmp_path / "out")
    for name, t in schemas.TABLES.items():
        if t.per_run:
            file = tmp_path / "out" / name / "experiment=X" / "replicate=2" / "part-0.parquet"
            assert pq.read_schema(file).equals(schemas.arrow(t)), name
            assert pq.ParquetFile(file).metadata.num_rows == 0
    assert not list((tmp_path / "out").glob("**/.part*"))


def test_written_types_and_nulls_are_those_of_the_schema(golden: Path) -> None:
    for name in ("worker_samples", "worker_events", "transfers", "log_files"):
        assert pq.read_schema(golden / name / "experiment=E0/replicate=1/part-0.parquet").equals(schemas.arrow(schemas.TABLES[name])), name


def test_transfers_join_the_three_sides(tmp_path: Path) -> None:
    logs = {
        "prefill-0.log": [L.SERVER_ARGS.format(mode="prefill"), "[2026-05-05 16:00:40] Session 10.0.0.3:15102 failed.", failed("Prefill", 1, "Failed to send kv chunk of 1 to 10.0.0.3:41002"), failed("Prefill", 2, DEAD), failed("Prefill", 2, DEAD), failed("Prefill", 5, "Aborted by AbortReq.")],
        "decode-0.log": [L.SERVER_ARGS.format(mode="decode"), failed("Decode", 1, "it might be dead"), failed("Decode", 2, "it might be dead"), failed("Decode", 6, "Request 6 timed out after 300.0s in KVPoll.WaitingForInput")],
    }
    requests = [request(1, "a", "prefill-0", "decode-0", 5.0), request(2, "b", "prefill-0", "decode-0", 39.0, finished_t=40.0, error_kind="peer_dead"),
                request(3, "c", "prefill-0", "decode-0", 1.0, status="ok", error_kind=None, first_token_t=2.5), request(None, "d", None, "decode-0", 1.0), request(4, "e", "prefill-0", "decode-0", 1.0, error_kind="http_5xx")]  # fmt: skip
    parse_run(make_run(tmp_path / "run", logs, requests), tmp_path / "out")
    found = {r["room"]: r for r in table(tmp_path / "out", "transfers")}
    assert {room: r["outcome"] for room, r in found.items()} == {1: "real_failure", 2: "rejection", 3: "ok", 4: "other", 5: "aborted", 6: "waiting_timeout"}
    assert (found[1]["wait_s"], found[2]["wait_s"], found[3]["wait_s"]) == (40.0, 1.0, 1.5)
    assert (found[1]["p_kind"], found[1]["p_line"], found[1]["d_kind"], found[1]["d_file"]) == ("transfer_error", 3, "transfer_error", "logs/decode-0.log")
    assert (found[6]["prefill_worker"], found[6]["decode_worker"], found[5]["prefill_worker"]) == (None, "decode-0", "prefill-0")
    assert all(r["shard"] == 15102 % 4 for r in found.values() if r["decode_worker"] == "decode-0")
    peers = [(e["kind"], e["peer_worker"]) for e in table(tmp_path / "out", "worker_events") if e["worker"] == "prefill-0"]
    assert peers == [("link_latched", "decode-0"), ("transfer_error", "decode-0"), ("peer_dead", "decode-0"), ("peer_dead", "decode-0"), ("abort", None)]


def test_a_run_that_states_its_queues_gives_healthy_links_a_shard(tmp_path: Path) -> None:
    """No line of a log names a D whose link never failed."""
    requests = [request(1, "a", "prefill-0", "decode-0", 5.0, status="ok"), request(2, "b", "prefill-0", "decode-1", 5.0, status="ok")]
    run = make_run(tmp_path / "run", {}, requests, workers={"decode-0": {"transfer_queue": 3}, "decode-1": {"pool_tokens": 7}})
    parse_run(run, tmp_path / "out")
    assert [(r["decode_worker"], r["shard"]) for r in table(tmp_path / "out", "transfers")] == [("decode-0", 3), ("decode-1", None)]


def test_a_latch_is_matched_with_the_failure_behind_it_only() -> None:
    def event(kind: str, line: int, **other: Any) -> Event:
        return Event("prefill-0", "prefill", kind, other.get("room"), other.get("peer"), "f", line, None, other.get("endpoint", False))

    latch = event("link_latched", 1, peer="10.0.0.3:15102")
    near = event("transfer_error", 2, room=7, peer="10.0.0.3:41002", endpoint=True)
    assert find([latch, near], {}, {7: "decode-2"}, {}).other_side(latch) == "decode-2"
    for other in (near._replace(line=40), near._replace(peer="10.0.0.4:41002"), near._replace(file="g")):
        assert find([latch, other], {}, {7: "decode-2"}, {}).other_side(latch) is None


def test_the_clock_of_a_run_in_another_zone_is_found(tmp_path: Path) -> None:
    logs = {"prefill-0.log": [failed("Prefill", 1, DEAD, "23:30:40")], "decode-0.log": ["[2026-05-05 23:30:41] The server is fired up and ready to roll!"]}
    parse_run(make_run(tmp_path / "run", logs, [request(1, "a", "prefill-0", "decode-0", 0.0)]), tmp_path / "out")
    files = {f["worker"]: f for f in table(tmp_path / "out", "log_files")}
    assert {f["clock_offset_s"] for f in files.values()} == {27000.0}
    assert "client saw too" in files["prefill-0"]["clock_basis"] and "other logs" in files["decode-0"]["clock_basis"]
    assert [e["t"] for e in table(tmp_path / "out", "worker_events")] == [41.0, 40.0] and table(tmp_path / "out", "worker_events")[0]["ts"] == START + 41


def evidence(**given: Any) -> Evidence:
    return Evidence(**({"role": None, "first_stamp": 0.0, "last_stamp": 0.0, "entry_gaps": [], "served": [], "shared": []} | given))


def test_clocks_state_their_basis() -> None:
    served = [float(s) for s in (10, 47, 111, 300, 333)]
    clocks = decide({"router": evidence(role="router", served=served), "w": evidence(served=[s + 8 * 3600 for s in served])})
    assert (clocks["w"].offset_s, clocks["router"].offset_s) == (28800.0, 0.0) and "router" in clocks["w"].basis
    assert decide({"w": evidence(entry_gaps=[-17999.0, -17800.0])})["w"].offset_s == -18000.0
    assert decide({"w": evidence(last_stamp=START + 3600)}, (START - 100, START + 30))["w"].offset_s == 3600.0
    assert decide({"w": evidence(first_stamp=None)})["w"].offset_s is None
    assert "taken as UTC" in decide({"w": evidence()})["w"].basis


def test_a_regular_rhythm_decides_no_shift() -> None:
    """Requests every 900 s fit every quarter of an hour: better no answer than a wrong one."""
    assert matching_shift([900.0 * i for i in range(20)], [900.0 * i for i in range(40)]) is None


def test_snapshots_become_loads(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"decode-0.log": [L.EVENTS[1][0]]}, [])
    (run / "loads.jsonl").write_text('{"worker": "decode-0", "t": 1.5, "running": 3, "used_tokens": 7}\n{"worker": "decode-1", "ts": 1777996802.5, "loads": [{"num_running_reqs": 4, "disaggregation": {"decode_transfer_queue_reqs": 9}}]}\n')
    (run / "logs/decode-0.v1_loads.txt").write_text('{"timestamp":"2026-05-05T16:00:04.5+00:00","loads":[{"dp_rank":0,"num_running_reqs":1,"token_usage":0.5}]}')
    parse_run(run, tmp_path / "out")
    found = [(r["worker"], r["t"], r["running"], r["transfer_queue"], r["token_usage"]) for r in table(tmp_path / "out", "loads")]
    assert found == [("decode-0", 1.5, 3, None, None), ("decode-1", 2.5, 4, 9, None), ("decode-0", 4.5, 1, None, 0.5)]
    assert len(table(tmp_path / "out", "log_files")) == 1


@pytest.mark.parametrize("content", ["not json", "{}", '{"experiment": "X", "replicate": "1", "started_ts": 0}'])
def test_a_broken_manifest_is_one_clear_line(content: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {}, [])
    (run / "run.json").write_text(content)
    with pytest.raises(InputError, match=r"run\.json: "):
        parse_run(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_parses_and_explains(tmp_path: Path) -> None:
    log = tmp_path / "w.log"
    log.write_text(f"{L.BATCHES[9][1]}\n{L.T}\x1b]0;evil\x07 nobody knows \x9b31m this\n{L.T}Decode batch, #run\n")
    shown = CliRunner().invoke(parse, ["--explain", str(log)], catch_exceptions=False)
    assert shown.exit_code == 0 and "\x1b" not in shown.output and "\x9b" not in shown.output
    assert all(word in shown.output for word in ("row", "unknown", "cut", "throughput=565264.55", "3 lines: 1 cut, 1 row, 1 unknown"))
    done = CliRunner().invoke(parse, [str(log), "--out", str(tmp_path / "out")], catch_exceptions=False)
    assert "1 files, 3 lines: 1 unknown" in done.output and len(table(tmp_path / "out", "worker_samples", "logs", 0)) == 1
    assert CliRunner().invoke(parse, []).exit_code == 2
    assert isinstance(CliRunner().invoke(parse, [str(tmp_path / "none")]).exception, InputError)


@pytest.mark.skipif(not (SHARED / "data/sglang-gpu-runs").is_dir(), reason="the raw runs (../shared/data) are not here")
def test_no_line_of_the_raw_workers_and_routers_is_unknown() -> None:
    data = SHARED / "data"
    files = [*data.glob("sglang-cpu-runs/log-*"), *data.glob("sglang-cpu-runs/direct-*"), *(p for p in data.glob("sglang-gpu-runs/*/*.log*") if not p.name.startswith("driver"))]
    assert len(files) > 60
    for path in files:
        log = collect([path])
        assert not log.unknown, (path.name, [u["shape"] for u in log.unknown])
        log.close()


def test_server_arguments_are_split_outside_brackets_and_quotes() -> None:
    assert split("a='x, (y', b=[1, {2: 3}], c=\"it's, \\\" so\", d=None") == ["a='x, (y'", " b=[1, {2: 3}]", " c=\"it's, \\\" so\"", " d=None"]
