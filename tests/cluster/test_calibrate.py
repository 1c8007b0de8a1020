"""apd calibrate: what is measured on a server with known service times, and what is fitted to known coefficients."""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import threading
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from apd_replay.cli import apd
from apd_replay.cluster.calibrate import fit as fits
from apd_replay.cluster.calibrate import hardware_file, least_squares, points, rows
from apd_replay.cluster.calibrate.calls import COUPLED, SNAPSHOT
from apd_replay.cluster.calibrate.traffic import Reply, step_seconds
from apd_replay.errors import InputError, RunError
from apd_replay.replay.admission import ASK

sys.path.insert(0, str(Path(__file__).parent))
import stub_server

ROOT = Path(__file__).parents[2]
SHAPE = {"num_hidden_layers": 48, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "torch_dtype": "bfloat16"}
SERVER = {"kind": "server", "model": "/models/moe", "sglang": "1.0", "role": "null", "kv_pool_tokens": 700_000, "chunk_tokens": 8192, "max_running_requests": 256, **SHAPE}
PREFILL = {"chunk_s": 22e-3, "token_s": 10e-6, "attention_s": 1.3e-9, "prefix_s": 0.3e-6}
DECODE = {"step_s": 3.4e-3, "experts_s": 13.8e-3, "expert_share": 0.0625, "context_s": 21e-9}
LINKS = {"mooncake": (7e-3, 300e9), "mooncake_tcp": (8e-3, 1.5e9), "nixl": (4e-3, 130e9)}
HANDSHAKE_S, RPC_S, ADMISSION_S = 11e-3, 2e-3, 0.4e-3
RUN_S, APPEND_S = 0.4e-3, 90e-3


def truth(new: int, cached: int) -> float:
    """The cost model's own words, chunk by chunk."""
    seconds, done = 0.0, cached
    while done < cached + new:
        part = min(8192, cached + new - done)
        seconds += PREFILL["chunk_s"] + part * (PREFILL["token_s"] + PREFILL["attention_s"] * (done + part / 2)) + PREFILL["prefix_s"] * done
        done += part
    return seconds


def step(batch: int, context: int) -> float:
    return DECODE["step_s"] + DECODE["experts_s"] * (1 - (1 - DECODE["expert_share"]) ** batch) + DECODE["context_s"] * batch * context


def measurements(sigma: float) -> list[rows.Row]:
    """Every kind of row of a machine with these coefficients, with log-normal noise."""
    noise = random.Random(5)

    def seen(seconds: float) -> float:
        return seconds * math.exp(noise.gauss(0, sigma))

    out: list[rows.Row] = [{"kind": "machine", "gpu": "NVIDIA H200", "driver": "1", "date": "2026-11-30"}, dict(SERVER)]
    for point in points.plan():
        match point:
            case points.Prefill(cached, new, repeats):
                out += [{"kind": "prefill", "new": new, "cached": cached, "seconds": seen(truth(new, cached)), "repeat": k} for k in range(repeats)]
            case points.Decode(context, batch):
                out.append({"kind": "decode", "batch": batch, "context": context, "step_s": seen(step(batch, context))})
    for backend, (latency_s, rate) in LINKS.items():
        for tokens in (512, 2048, 8192):
            size = tokens * 98304
            for repeat in range(2):
                slow = 10 if repeat == 0 else 1  # the first sets buffers up
                seconds = seen(latency_s + size / rate) * slow
                out.append({"kind": "transfer", "backend": backend, "tokens": tokens, "bytes": size, "seconds": seconds, "first_s": HANDSHAKE_S + truth(tokens, 0) + seconds + step(1, tokens), "prefill_s": 0.0, "repeat": repeat})
    latency_s, rate = LINKS["mooncake"]
    for tokens, repeat in product((2000, 3500), range(2)):
        seconds = seen(latency_s + tokens * 98304 / rate + RUN_S * (tokens - 1)) * (3 if repeat == 0 else 1)
        out.append({"kind": "scattered", "backend": "mooncake", "tokens": tokens, "bytes": tokens * 98304, "seconds": seconds, "first_s": None, "prefill_s": 0.0, "repeat": repeat})
    for new, cached, repeat in product((16, 256, 1024, 8192), (1024, 20480), range(2)):
        out.append({"kind": "append", "new": new, "cached": cached, "seconds": max(seen(APPEND_S), seen(truth(new, cached))) * (3 if repeat == 0 else 1), "repeat": repeat})
    out += [{"kind": "call", "path": COUPLED, "running": 0, "status": 200, "seconds": seen(RPC_S), "repeat": k} for k in range(20)]
    for path, price in ((COUPLED, ADMISSION_S), (SNAPSHOT, 0.0)):
        out.append({"kind": "calls", "path": path, "running": 32, "calls_per_s": 50.0, "latencies_s": [0.004], "quiet_step_s": 0.010, "step_s": 0.010 / (1 - 50.0 * price)})
    return [row if row["kind"] == "machine" else {"model": SERVER["model"], **row} for row in out]


def test_exact_measurements_give_the_coefficients_back() -> None:
    found = fits.fit(measurements(0.0))
    assert not found.missing
    assert found.groups["prefill"].values == pytest.approx(PREFILL, rel=1e-6)
    assert found.groups["decode"].values == pytest.approx(DECODE, rel=1e-6)
    for backend, (latency_s, rate) in LINKS.items():
        scattered = {"run_s": RUN_S} if backend == "mooncake" else {}
        assert found.groups[f"transfer.{backend}"].values == pytest.approx({"latency_s": latency_s, "bytes_per_s": rate, **scattered}, rel=1e-6)
    assert found.groups["append_s"].values["append_s"] == pytest.approx(APPEND_S)
    assert found.groups["handshake_s"].values["handshake_s"] == pytest.approx(HANDSHAKE_S, rel=1e-6)
    assert found.groups["rpc_s"].values["rpc_s"] == pytest.approx(RPC_S)
    assert found.groups["admission_s"].values["admission_s"] == pytest.approx(ADMISSION_S)


def test_appends_that_take_what_prefill_takes_have_no_least_time() -> None:
    some = [{**r, "seconds": truth(r["new"], r["cached"])} if r["kind"] == "append" else r for r in measurements(0.0)]
    assert fits.fit(some).groups["append_s"].values == {"append_s": 0.0}


def test_runs_are_priced_by_the_models_own_measurements() -> None:
    """A run costs a piece in each layer, so another model's layers would charge another price."""
    some = [{**r, "model": "/models/other"} if r["kind"] == "scattered" else r for r in measurements(0.0)]
    assert "run_s" not in fits.fit(some, "moe").groups["transfer.mooncake"].values


def test_noisy_measurements_give_them_back_within_the_noise() -> None:
    found = fits.fit(measurements(0.02))
    for name, value in PREFILL.items():
        assert found.groups["prefill"].values[name] == pytest.approx(value, rel=0.15), name
    for name, value in DECODE.items():
        assert found.groups["decode"].values[name] == pytest.approx(value, rel=0.15), name
    assert found.groups["noise_sigma"].values["noise_sigma"] == pytest.approx(0.02, rel=0.25)
    assert 0 < found.groups["prefill"].high < 0.08 and -0.08 < found.groups["prefill"].low < 0


def test_residuals_are_predicted_over_measured_minus_one() -> None:
    features, measured = [[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]], [2.0, 3.0, 8.0]
    assert least_squares.residuals(features, measured, [1.0, 1.0]) == [0.0, 0.0, -0.5]
    found = fits._fitted(("a", "b"), features, measured)
    again = [found.values["a"] + found.values["b"] * x for x in (1, 2, 3)]
    assert (found.low, found.high) == (pytest.approx(min(p / m - 1 for p, m in zip(again, measured, strict=True))), pytest.approx(max(p / m - 1 for p, m in zip(again, measured, strict=True))))


def test_a_coefficient_that_would_be_negative_is_zero_and_the_rest_fits_without_it() -> None:
    assert least_squares.relative([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]], [3.0, 2.0, 1.0])[1] == 0.0
    # alone, the constant that misses 3, 2, 1 least in relative terms is sum(1/y) / sum(1/y^2)
    assert least_squares.relative([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]], [3.0, 2.0, 1.0])[0] == pytest.approx((1 / 3 + 1 / 2 + 1) / (1 / 9 + 1 / 4 + 1))


def test_a_dense_model_has_no_experts_to_read() -> None:
    assert fits.expert_share({"num_hidden_layers": 28}) == 1.0
    dense = [{"batch": b, "context": c, "step_s": 2e-3 + 1e-8 * b * c} for b in (1, 4, 16) for c in (1000, 9000)]
    assert fits.decode(dense, 1.0).values == pytest.approx({"step_s": 2e-3, "experts_s": 0.0, "expert_share": 1.0, "context_s": 1e-8})


def test_the_file_is_one_that_the_simulator_reads_and_says_what_was_not_measured() -> None:
    base = yaml.safe_load((ROOT / "config" / "hardware" / "h200-qwen3-30b-a3b.yaml").read_text())
    some = [r for r in measurements(0.02) if r["kind"] not in ("call", "calls") and r.get("backend") != "mooncake"]
    text = hardware_file.render(fits.fit(some), "NVIDIA H200", "MoE bf16", base, "h200.yaml")
    content = yaml.safe_load(text)
    schema = yaml.safe_load((ROOT / "config" / "schema" / "hardware.yaml").read_text())
    assert not list(Draft202012Validator(schema).iter_errors(content))
    assert set(content) == set(schema["properties"])
    assert content["kv_bytes_per_token"] == 98304 and content["kv_pool_tokens"] == 700_000
    assert content["transfer"]["mooncake"] == base["transfer"]["mooncake"] and content["rpc_s"] == base["rpc_s"]
    assert "# NOT measured here (no idle calls measured): taken from h200.yaml." in text and text.count("NOT measured") == 3
    assert content["prefill"]["token_s"] != base["prefill"]["token_s"]


def test_without_a_base_a_gap_is_an_error() -> None:
    some = [r for r in measurements(0.0) if r["kind"] != "calls"]
    with pytest.raises(RunError, match=r"admission_s: no calls under load measured; .*--base"):
        hardware_file.render(fits.fit(some), "GPU", "model")


def test_rows_of_two_models_are_not_mixed() -> None:
    other = [{**r, "model": "/models/other", **({"seconds": 100.0} if r["kind"] == "prefill" else {})} for r in measurements(0.0)]
    with pytest.raises(RunError, match="several models: moe, other; name one"):
        fits.fit([*measurements(0.0), *other])
    assert fits.fit([*other, *measurements(0.0)], "moe").groups["prefill"].values == pytest.approx(PREFILL, rel=1e-6)


def test_a_file_cut_by_a_kill_is_read_up_to_there_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    whole = json.dumps(SERVER)
    (tmp_path / "cut.jsonl").write_text(f"{whole}\n{whole[:20]}")
    assert rows.read([tmp_path / "cut.jsonl"]) == [SERVER]
    (tmp_path / "broken.jsonl").write_text(f"{whole[:20]}\n{whole}\n")
    with pytest.raises(InputError, match=r"broken.jsonl:1: not a JSON line"):
        rows.read([tmp_path / "broken.jsonl"])


def test_the_step_is_taken_where_all_decode_together() -> None:
    early, late = Reply(0.0), Reply(0.0)
    early.arrivals = [(0.01 * n, n) for n in range(1, 101)]  # 10 ms a token, until 1.0
    late.arrivals = [(0.5 + 0.02 * n, n) for n in range(1, 101)]  # 20 ms a token, from 0.5
    both = step_seconds([early, late])
    assert both == pytest.approx(0.015)
    late.arrivals = [(2.0 + t, n) for t, n in late.arrivals]
    assert step_seconds([early, late]) is None


# On a server -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**SHAPE, "vocab_size": 5000, "max_position_embeddings": 30_000}))
    return str(folder)


@pytest.fixture
def serve(model: str) -> Iterator:
    """serve(role, ...) starts a stub in a thread and returns it; all are stopped at the end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    started = []

    def start(role: str = "null", **how) -> stub_server.StubServer:
        server = stub_server.StubServer(model, role, **how)
        started.append(server)
        return asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(10)

    yield start
    for server in started:
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result(10)
    for task in asyncio.all_tasks(loop):
        loop.call_soon_threadsafe(task.cancel)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


def few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [points.Prefill(0, 500), points.Decode(600, 1), points.Decode(600, 4), points.Decode(600, 16), points.Calls(0), points.Calls(4),
              points.Prefill(4000, 500), points.Prefill(0, 25_000)]  # fmt: skip
    monkeypatch.setattr(points, "plan", lambda: iter(chosen))


def test_a_worker_is_measured_row_by_row(serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_points(monkeypatch)
    monkeypatch.setattr("apd_replay.cluster.calibrate.calls.TOKENS", 40)
    monkeypatch.setattr(points, "DECODE_TOKENS", 40)
    server = serve()
    run = CliRunner().invoke(apd, ["calibrate", "worker", "--server", server.url, "--raw", str(tmp_path / "raw.jsonl")], catch_exceptions=False)
    assert run.exit_code == 0, run.output
    found = rows.read([tmp_path / "raw.jsonl"])
    fresh = [r for r in found if r["kind"] == "prefill" and r["cached"] == 0 and r["new"] == 500]
    behind = [r for r in found if r["kind"] == "prefill" and r["cached"] >= 4000]
    assert len(fresh) == len(behind) == 3 and all(r["new"] <= 500 for r in behind)
    assert all(r["seconds"] > stub_server.PREFILL_S for r in fresh)
    steps = {r["batch"]: r["step_s"] for r in found if r["kind"] == "decode"}
    for batch in (1, 4):
        took = [seconds for running, seconds in server.steps if running == batch]
        assert stub_server.STEP_S + batch * stub_server.REQUEST_S <= steps[batch] < 2 * sum(took) / len(took)
    assert set(steps) == {1, 4}
    assert {(r["what"], r["why"].split(",")[0]) for r in found if r["kind"] == "skipped"} == {
        ("Decode(context=600, batch=16)", "16 running requests"), ("Prefill(cached=0, new=25000, repeats=3)", "25000 tokens of KV"),
    }  # fmt: skip
    idle = sorted(r["seconds"] for r in found if r["kind"] == "call" and r["path"] == COUPLED and not r["running"])
    assert idle[0] >= stub_server.CALL_S
    assert {r["path"] for r in found if r["kind"] == "calls"} == {COUPLED, SNAPSHOT}
    assert all(r["model"].endswith("tiny") for r in found if r["kind"] != "machine")


def test_the_deadline_keeps_what_there_is(serve, tmp_path: Path) -> None:
    run = CliRunner().invoke(apd, ["calibrate", "worker", "--server", serve().url, "--raw", str(tmp_path / "raw.jsonl"), "--deadline-s", "1.5"], catch_exceptions=False)
    assert run.exit_code == 0 and "stopped at the deadline" in run.output
    assert rows.read([tmp_path / "raw.jsonl"])


def test_a_server_that_refuses_is_a_row_not_a_crash(serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_points(monkeypatch)
    monkeypatch.setattr("apd_replay.cluster.calibrate.worker.WARM_UP", ())
    monkeypatch.setattr("apd_replay.cluster.calibrate.worker.Worker.warm_up", lambda self: asyncio.sleep(0))
    CliRunner().invoke(apd, ["calibrate", "worker", "--server", serve(refuse=True).url, "--raw", str(tmp_path / "raw.jsonl")], catch_exceptions=False)
    found = rows.read([tmp_path / "raw.jsonl"])
    assert not [r for r in found if r["kind"] in ("prefill", "decode")]
    assert {"HTTP 503" in r["why"] for r in found if r["kind"] == "failed"} == {True}


def test_a_link_is_measured_by_the_prefill_workers_own_counters(serve, tmp_path: Path) -> None:
    prefill, decode = serve("prefill"), serve("decode")
    run = CliRunner().invoke(apd, ["calibrate", "link", "--prefill", prefill.url, "--decode", decode.url, "--bootstrap-port", "8998", "--backend", "nixl", "--raw", str(tmp_path / "raw.jsonl")], catch_exceptions=False)
    assert run.exit_code == 0, run.output
    moved = [r for r in rows.read([tmp_path / "raw.jsonl"]) if r["kind"] == "transfer"]
    assert [r["tokens"] for r in moved] == [n for n in (512, 1024, 2048, 4096, 8192) for _ in range(5)]
    assert {round(r["seconds"], 9) for r in moved} == {stub_server.TRANSFER_MS / 1000} and {r["bytes"] for r in moved} == {round(stub_server.TRANSFER_MIB * 2**20)}


def test_a_p_that_does_not_count_its_transfers_is_an_error_and_a_d_that_refuses_a_row(serve, tmp_path: Path) -> None:
    for k, (prefill, decode) in enumerate(((serve("prefill", metrics=False), serve("decode")), (serve("prefill"), serve("decode", refuse=True)))):
        raw = tmp_path / f"{k}.jsonl"
        run = CliRunner().invoke(apd, ["calibrate", "link", "--prefill", prefill.url, "--decode", decode.url, "--bootstrap-port", "8998", "--backend", "nixl", "--raw", str(raw)])
        failed = [r["why"] for r in rows.read([raw]) if r["kind"] == "failed"]
        if k == 0:
            assert isinstance(run.exception, RunError) and "start the P with --enable-metrics" in str(run.exception) and not failed
        else:
            assert run.exit_code == 0 and len(failed) == 1 and "HTTP 503" in failed[0]


def test_a_session_is_closed_also_where_its_turns_fail(serve, tmp_path: Path) -> None:
    prefill, decode = serve("prefill"), serve("decode", refuse=True, plugin=True)
    run = CliRunner().invoke(apd, ["calibrate", "append", "--prefill", prefill.url, "--decode", decode.url, "--bootstrap-port", "8998", "--raw", str(tmp_path / "raw.jsonl")])
    assert decode.closed == [] and "they do not fit the pools" in (tmp_path / "raw.jsonl").read_text() and run.exit_code == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("apd_replay.cluster.calibrate.append.HISTORIES", (200,))
        patch.setattr("apd_replay.cluster.calibrate.append.NEW", (16,))
        run = CliRunner().invoke(apd, ["calibrate", "append", "--prefill", prefill.url, "--decode", decode.url, "--bootstrap-port", "8998", "--raw", str(tmp_path / "raw.jsonl")])
    assert isinstance(run.exception, RunError) and "HTTP 503" in str(run.exception) and decode.closed == ["calibrate-200"]


def test_calls_of_a_d_are_measured_where_it_has_the_plugin(serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apd_replay.cluster.calibrate.calls.TOKENS", 30)
    prefill, decode = serve("prefill"), serve("decode", plugin=True)
    run = CliRunner().invoke(apd, ["calibrate", "calls", "--prefill", prefill.url, "--decode", decode.url, "--bootstrap-port", "8998", "--raw", str(tmp_path / "raw.jsonl")], catch_exceptions=False)
    assert run.exit_code == 0, run.output
    found = rows.read([tmp_path / "raw.jsonl"])
    assert {(r["path"], r["running"]) for r in found if r["kind"] == "calls"} == {(COUPLED, 8), (SNAPSHOT, 8), (ASK, 8)}
    assert decode.longest_batch == 8 and {r["status"] for r in found if r["kind"] == "call"} == {200}
    assert [r["what"] for r in found if r["kind"] == "skipped"] == ["calls while 32 requests decode"]
    assert all(t >= stub_server.CALL_S for r in found if r["kind"] == "calls" and r["path"] != SNAPSHOT for t in r["latencies_s"])
    assert fits.rpc([], found).values["rpc_s"] >= stub_server.CALL_S


def test_appends_and_scattered_transfers_are_measured_on_a_d_with_the_plugin(serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (("append", "HISTORIES", (200,)), ("append", "NEW", (16, 64)), ("scattered", "ANSWER", 20), ("scattered", "SIZES", (1600,))):
        monkeypatch.setattr(f"apd_replay.cluster.calibrate.{module}.{name}", value)
    prefill, decode = serve("prefill"), serve("decode", plugin=True)
    ends = ["--prefill", prefill.url, "--decode", decode.url, "--bootstrap-port", "8998", "--raw", str(tmp_path / "raw.jsonl")]
    for more in (["append"], ["scattered", "--backend", "mooncake"]):
        run = CliRunner().invoke(apd, ["calibrate", *more, *ends], catch_exceptions=False)
        assert run.exit_code == 0, run.output
    found = rows.read([tmp_path / "raw.jsonl"])
    assert [r["new"] for r in found if r["kind"] == "append"] == [16] * 4 + [64] * 4
    assert {r["bytes"] for r in found if r["kind"] == "scattered"} == {round(stub_server.TRANSFER_MIB * 2**20)}
    assert decode.closed == ["calibrate-200", "calibrate-left", "calibrate-right", "calibrate-filling"]


def test_no_server_is_one_clear_line(tmp_path: Path) -> None:
    run = CliRunner().invoke(apd, ["calibrate", "worker", "--server", "http://127.0.0.1:9", "--raw", str(tmp_path / "raw.jsonl")])
    assert isinstance(run.exception, RunError) and "is a server with SGLang's HTTP API running there?" in str(run.exception)
