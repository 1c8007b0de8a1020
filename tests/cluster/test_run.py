"""A whole run against fake servers: the run directory, behind processes that `run` starts itself and against foreign ones."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apd_replay import configuration
from apd_replay.cluster import run as running
from apd_replay.cluster.ports import free_ports
from apd_replay.cluster.servers import Server
from apd_replay.configuration import Experiment
from apd_replay.errors import RunError
from apd_replay.replay.client import Address
from apd_replay.trace.model import Session, Trace, Turn

ROOT = Path(__file__).parent.parent.parent
SERVE = """
import asyncio, os, sys
sys.path.insert(0, {tests!r})
from fake_server import FakeServer, answer

async def handle(x):
    if x.path.startswith("/v1/loads"):
        await x.reply(200, {{"loads": [{{"num_running_reqs": 1, "num_used_tokens": 10, "max_total_num_tokens": 100, "token_usage": 0.1,
                                         "disaggregation": {{"decode_transfer_queue_reqs": 3}}}}]}})
    elif {dies!r} and len(x.prompt) > 60:
        os._exit(7)
    else:
        await answer(x, weight_version={name!r})

async def main():
    server = await asyncio.start_server(FakeServer(handle).serve, "127.0.0.1", {port})
    print("The server is fired up and ready to roll!", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


def fakes(experiment: Experiment, replicate: int, dies: bool = False) -> list[Server]:
    cluster = experiment.cluster
    roles = [("prefill", i) for i in range(cluster["prefill"])] + [("decode", i) for i in range(cluster["decode"])] + [("worker", i) for i in range(cluster["workers"])]
    out = []
    for (role, i), port in zip(roles, free_ports(len(roles)), strict=True):
        name = f"{role}-{i}"
        code = SERVE.format(tests=str(ROOT / "tests/replay"), name=name, port=port, dies=dies and name == "decode-1")
        out.append(Server(name, "unified" if role == "worker" else role, (sys.executable, "-c", code), {}, Address("127.0.0.1", port),
                          "ready to roll!", 8998 if role == "prefill" else None, loopback_only=False))  # fmt: skip
    return out


def experiment(**settings: Any) -> Experiment:
    base = configuration.load(ROOT / "config/config.yaml", "cpu").experiments["cpu-pd@sglang-tiny-8"]
    return replace(base, settings={**base.settings, "start_spread_s": 0.0, **settings})


TRACE = Trace("t", "d", tuple(
    Session(f"s{s}", tuple(Turn(f"s{s}", k, 0.0, 0.02 if k else None, None, 30 + 20 * k, 3) for k in range(3))) for s in range(4)))  # fmt: skip


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "requests.jsonl").read_text().splitlines()]


def test_a_run_leaves_its_whole_directory(tmp_path: Path) -> None:
    running.run(experiment(loads_every_s=0.05), TRACE, 3, tmp_path, launcher=fakes)
    manifest = json.loads((tmp_path / "run.json").read_text())
    assert (manifest["status"], manifest["requests"], manifest["errors"], manifest["seed"], manifest["replicate"]) == ("complete", 12, 0, 3, 3)
    assert manifest["hardware"] == "cpu", "whatever the simulator's coefficients are"
    assert set(manifest["workers"]) == {"prefill-0", "decode-0", "decode-1"} and manifest["workers"]["prefill-0"]["bootstrap_port"] == 8998
    assert manifest["client"]["dispatch_lateness_s"]["max"] >= 0 and manifest["workers_ended"] == {}
    assert {r["status"] for r in rows(tmp_path)} == {"ok"} and {r["decode_worker"] for r in rows(tmp_path)} == {"decode-0", "decode-1"}
    late = [json.loads(line) for line in (tmp_path / "lateness.jsonl").read_text().splitlines()]
    assert {entry["request_id"] for entry in late} == {r["request_id"] for r in rows(tmp_path)} and all(entry["lateness_s"] >= 0 for entry in late)
    loads = [json.loads(line) for line in (tmp_path / "loads.jsonl").read_text().splitlines()]
    assert {row["worker"] for row in loads} == {"decode-0", "decode-1"} and {(row["used_tokens"], row["transfer_queue"]) for row in loads} == {(10, 3)}
    assert sorted(p.name for p in (tmp_path / "logs").iterdir()) == ["decode-0.log", "decode-1.log", "prefill-0.log"]


def test_no_two_runs_use_the_same_room(tmp_path: Path) -> None:
    """A server remembers the rooms it has seen: the same replicate again, on servers that somebody else runs, must not meet them."""
    rooms = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        running.run(experiment(), TRACE, 1, tmp_path / name, launcher=fakes)
        rooms.append({r["bootstrap_room"] for r in rows(tmp_path / name)})
    assert len(rooms[0]) == 12 and not rooms[0] & rooms[1]


def test_worker_logs_are_left_out_where_nobody_wants_them(tmp_path: Path) -> None:
    running.run(experiment(rows="no_logs"), TRACE, 1, tmp_path, launcher=fakes)
    assert list((tmp_path / "logs").iterdir()) == [] and (tmp_path / "run.json").exists()


def test_a_worker_that_dies_in_mid_run_does_not_end_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running.run(experiment(), TRACE, 1, tmp_path, launcher=lambda e, r: fakes(e, r, dies=True))
    manifest = json.loads((tmp_path / "run.json").read_text())
    assert manifest["requests"] == 12 and "decode-1 ended with status" in manifest["workers_ended"]["decode-1"]
    assert {r["error_kind"] for r in rows(tmp_path) if r["status"] == "error"} == {"connection"}
    assert "during the run decode-1 ended" in capsys.readouterr().err


def test_a_server_that_gives_no_token_ends_the_run_before_it_starts(tmp_path: Path) -> None:
    def broken(chosen: Experiment, replicate: int) -> list[Server]:
        servers = fakes(chosen, replicate)
        argv = (sys.executable, "-c", servers[2].argv[2].replace("await answer(x", "await x.reply(500, {'error': 'no model'}) or await answer(x"))
        return [*servers[:2], replace(servers[2], argv=argv)]

    with pytest.raises(RunError, match="prefill-0 to decode-1: http_5xx: HTTP 500: no model"):
        running.run(experiment(), TRACE, 1, tmp_path, launcher=broken)
    assert not (tmp_path / "run.json").exists() and not (tmp_path / "requests.jsonl").exists()


def test_dummy_weights_are_answered_with_temperature() -> None:
    assert running._temperature(experiment()) == 0.0
    dummy = experiment()
    assert running._temperature(replace(dummy, cluster={**dummy.cluster, "server_args": ["--load-format", "dummy"]})) == 1.0
