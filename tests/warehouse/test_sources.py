"""What other tools leave: each format as its tool writes it, in small. Nothing that a tool does not say is filled in."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from apd_replay.claims.command import claims
from apd_replay.errors import ApdError, ConfigError, InputError
from apd_replay.schemas import REQUESTS
from apd_replay.warehouse import query as asking
from apd_replay.warehouse.command import import_runs
from apd_replay.warehouse.importing import import_runs as take_in

CONFIG = Path(__file__).parents[2] / "config"
GPU_RUNS = Path(__file__).parents[2].parent / "shared/data/sglang-gpu-runs"
START_NS = 1759813207532900363


def aiperf_line(turn: int = 0, error: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    start = START_NS + turn * 5_000_000_000
    metrics = {"input_sequence_length": {"value": 550, "unit": "tokens"}, "time_to_first_token": {"value": 255.5, "unit": "ms"},
               "request_latency": {"value": 1500.0, "unit": "ms"}, "output_sequence_length": {"value": 9, "unit": "tokens"},
               "inter_chunk_latency": {"value": [4.8, 5.3], "unit": "ms"}, "requested_osl": {"value": 10, "unit": "tokens"}}  # fmt: skip
    return {"metadata": {"session_num": 0, "x_request_id": f"r-{turn}", "x_correlation_id": "s-1", "conversation_id": "c-1", "turn_index": turn,
                         "request_start_ns": start, "request_ack_ns": start + 1000, "request_end_ns": start + 1_500_000_000, "worker_id": "worker_359d423a",
                         "record_processor_id": "p", "benchmark_phase": "profiling", "was_cancelled": False, "cancellation_time_ns": None, **metadata},
            "metrics": {"error_isl": {"value": 550, "unit": "tokens"}} if error else metrics, "error": error}  # fmt: skip


BENCH = {"backend": "sglang", "dataset_name": "random", "request_rate": 4.0, "max_concurrency": 8, "server_info": {"model_path": "m"}, "duration": 12.5, "completed": 2,
         "mean_ttft_ms": 150.0, "request_throughput": 0.2, "input_lens": [100, 200, 300], "output_lens": [3, 2, 0], "ttfts": [0.1, 0.2, 0.0],
         "itls": [[0.01, 0.02], [0.5], []], "generated_texts": ["a", "b", ""], "errors": ["", "", "Traceback ...\nKVTransferError(bootstrap_room=7)"]}  # fmt: skip

DYNAMO = {"session_id": "a", "turn_index": 0, "uuid": "u-0", "arrival_time_ms": 100.0, "dispatched_at_ms": None, "first_admit_ms": 100.0, "terminal_time_ms": 321.0,
          "first_token_ms": 154.5, "last_token_ms": 321.0, "ttft_ms": 54.5, "ttst_ms": 5.7, "e2e_latency_ms": 221.0, "itl_ms": 5.7, "input_length": 2000,
          "requested_output_length": 30, "output_length": 30, "reused_input_tokens": 512, "prefill_worker_idx": 0, "decode_worker_idx": 1,
          "routing_history": [{"pool": "decode", "logical_worker_id": 1}, {"pool": "prefill", "logical_worker_id": 0}], "terminal_status": "completed"}  # fmt: skip


def lines(file: Path, *rows: dict[str, Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def call(results: Path, *arguments: object) -> Result:
    return CliRunner().invoke(import_runs, [*map(str, arguments), "--results", str(results), "--config", str(CONFIG)], catch_exceptions=False)


def ask(results: Path, query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = asking.ask(results, query).to_pylist()
    return found


def known(results: Path) -> list[dict[str, Any]]:
    """Requests with the columns that have a value."""
    return [{k: v for k, v in row.items() if v is not None} for row in ask(results, f"SELECT {', '.join(REQUESTS.names)} FROM all_requests ORDER BY request_id")]


def test_aiperf(tmp_path: Path) -> None:
    failed = aiperf_line(1, {"code": 500, "type": "HTTPError", "message": "boom"})
    cancelled = aiperf_line(2, {"code": 499, "type": "RequestCancellationError", "message": "cancelled"}, was_cancelled=True)
    file = lines(tmp_path / "any_name.jsonl", aiperf_line(0, benchmark_phase="warmup"), aiperf_line(0), failed, cancelled)
    said = call(tmp_path / "results", file, "--as", "theirs")
    assert said.exit_code == 0, said.output
    common = {"session": "s-1", "input_tokens": 550}
    assert known(tmp_path / "results") == [
        {"request_id": "r-0", "turn": 0, **common, "dispatched_t": 0.0, "first_token_t": 0.2555, "finished_t": 1.5, "output_tokens": 9, "asked_output_tokens": 10, "status": "ok"},
        {"request_id": "r-1", "turn": 1, **common, "dispatched_t": 5.0, "finished_t": 6.5, "status": "error", "error_kind": "http_5xx", "error_message": "boom"},
        {"request_id": "r-2", "turn": 2, **common, "dispatched_t": 10.0, "finished_t": 11.5, "status": "truncated", "error_message": "cancelled"},
    ]
    [run] = ask(tmp_path / "results", "SELECT engine, trace, time_scale, started_ts, duration_s, requests, errors FROM runs")
    assert run == {"engine": "imported", "trace": None, "time_scale": None, "started_ts": START_NS / 1e9, "duration_s": 11.5, "requests": 3, "errors": 1}
    assert "1 requests of other phases (warm-up) are left out" in said.output and "1 requests were cancelled by AIPerf itself" in said.output
    shown = [line for line in (CONFIG.parent / "docs/import.md").read_text().splitlines() if line.startswith("theirs: ")]
    assert {line.split()[1] for line in shown} >= {"s2", "headline"} and set(shown) <= set(said.output.splitlines()), "as docs/import.md shows it"


def test_latencies_are_there_and_responses_are_not(tmp_path: Path) -> None:
    call(tmp_path, lines(tmp_path / "a.jsonl", aiperf_line(0), aiperf_line(1, {"code": 500, "type": "E", "message": "boom"})), "--as", "a")
    assert ask(tmp_path, "SELECT latency_s, ttft_s, response_s FROM requests ORDER BY turn") == [
        {"latency_s": 1.5, "ttft_s": 0.2555, "response_s": None}, {"latency_s": None, "ttft_s": None, "response_s": None}]  # fmt: skip
    assert ask(tmp_path, "SELECT direct_rate, starved, completion_s FROM sessions") == [{"direct_rate": None, "starved": None, "completion_s": None}]


def test_bench_serving(tmp_path: Path) -> None:
    said = call(tmp_path, lines(tmp_path / "bench.jsonl", BENCH, {**BENCH, "ttfts": [0.3, 0.2, 0.0]}), "--as", "bench")
    assert said.exit_code == 0, said.output
    assert known(tmp_path)[0] == {"request_id": "1-0", "session": "1-0", "turn": 0, "status": "ok", "input_tokens": 100, "output_tokens": 3,
                                  "reported_ttft_s": 0.1, "reported_latency_s": pytest.approx(0.13)}  # fmt: skip
    assert ask(tmp_path, "SELECT replicate, errors, concurrency, model, started_ts, duration_s FROM runs ORDER BY replicate") == [
        {"replicate": n, "errors": 1, "concurrency": 8, "model": "m", "started_ts": None, "duration_s": 12.5} for n in (1, 2)]  # fmt: skip
    assert ask(tmp_path, "SELECT replicate, latency_p50, ttft_p50, errors FROM latency_quantiles('bench')")[0] == {
        "replicate": 1, "latency_p50": pytest.approx(0.415), "ttft_p50": pytest.approx(0.15), "errors": 1}  # fmt: skip
    assert ask(tmp_path, "SELECT tpot_s FROM requests WHERE request_id = '1-0'") == [{"tpot_s": pytest.approx(0.015)}]
    assert ask(tmp_path, "SELECT DISTINCT error_kind FROM requests WHERE status = 'error'") == [{"error_kind": "kv_transfer"}]
    assert "only durations" in said.output and "bench: s7 cannot be decided in full without" in said.output


def test_bench_serving_without_details_or_of_two_benchmarks(tmp_path: Path) -> None:
    averages = {key: value for key, value in BENCH.items() if not isinstance(value, list)}
    with pytest.raises(InputError, match=r"a\.jsonl:1: column ttfts: holds averages only; run bench_serving with --output-details"):
        take_in([lines(tmp_path / "a.jsonl", averages)], tmp_path / "results", experiment="b")
    with pytest.raises(InputError, match=r"b\.jsonl:2: column request_rate: another benchmark than line 1 \(request_rate 8\.0, not 4\.0\)"):
        take_in([lines(tmp_path / "b.jsonl", BENCH, {**BENCH, "request_rate": 8.0})], tmp_path / "results", experiment="b")
    with pytest.raises(InputError, match=r"c\.jsonl:1: column itls: not a list of 3 values"):
        take_in([lines(tmp_path / "c.jsonl", {**BENCH, "itls": [[]]})], tmp_path / "results", experiment="b")
    assert not (tmp_path / "results").exists()


def test_dynamo(tmp_path: Path) -> None:
    unified = {**DYNAMO, "uuid": "u-1", "turn_index": 1, "prefill_worker_idx": None, "routing_history": [{"pool": "agg"}], "dispatched_at_ms": 110.0, "terminal_status": "failed"}
    said = call(tmp_path, lines(tmp_path / "r.jsonl", DYNAMO, unified), "--as", "dyn")
    assert said.exit_code == 0, said.output
    common = {"session": "a", "scheduled_t": 0.1, "first_token_t": 0.1545, "finished_t": 0.321, "input_tokens": 2000, "cached_tokens": 512, "output_tokens": 30, "asked_output_tokens": 30}
    assert known(tmp_path) == [
        {"request_id": "u-0", "turn": 0, **common, "prefill_worker": "prefill-0", "decode_worker": "decode-1", "status": "ok", "reported_latency_s": 0.221, "reported_ttft_s": 0.0545},
        {"request_id": "u-1", "turn": 1, **common, "path": "dp", "decode_worker": "worker-1", "dispatched_t": 0.11, "status": "error"},
    ]
    assert "its times are virtual" in said.output and "1 of 2 requests do not say when they were dispatched" in said.output


def test_the_same_file_again_changes_nothing_and_another_is_another_replicate(tmp_path: Path) -> None:
    first, second = lines(tmp_path / "1.jsonl", DYNAMO), lines(tmp_path / "2.jsonl", {**DYNAMO, "output_length": 31})
    for file in (first, first, second, first):
        assert call(tmp_path, file, "--as", "dyn").exit_code == 0
    assert ask(tmp_path, "SELECT replicate FROM runs ORDER BY 1") == [{"replicate": 1}, {"replicate": 2}]
    with pytest.raises(ApdError, match="are both dyn replicate 1"):
        take_in([first, first], tmp_path, experiment="dyn")


def test_a_run_of_another_tool_needs_an_id_and_an_unknown_one_a_mapping(tmp_path: Path) -> None:
    with pytest.raises(ApdError, match="dynamo names no experiment; give it an id with --as ID"):
        take_in([lines(tmp_path / "r.jsonl", DYNAMO)], tmp_path / "results")
    with pytest.raises(InputError, match=r"x\.jsonl:1: is of no known tool \(its first line has a, b\); known: .*--mapping"):
        take_in([lines(tmp_path / "x.jsonl", {"a": 1, "b": 2})], tmp_path / "results", experiment="x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: run\.json is missing, and nothing else in it is known; run\.json marks a whole run"):
        take_in([tmp_path / "empty"], tmp_path / "results", experiment="x")
    assert not (tmp_path / "results").exists()


# a folder of logs ----------------------------------------------------------------------------------------------------


@pytest.fixture
def log_folder(tmp_path: Path) -> Path:
    """The logs of a real P and a real D on GPUs, under srt-slurm's names."""
    if not GPU_RUNS.is_dir():
        pytest.skip("no real log folders (../shared) on this machine")
    folder = tmp_path / "job-42" / "logs"
    folder.mkdir(parents=True)
    for name, source in (("eos01_prefill_w0", "kvc_P"), ("eos02_decode_w0", "kvc_D")):
        with gzip.open(GPU_RUNS / "B_q30" / f"{source}.log.gz") as log:
            (folder / f"{name}.out").write_bytes(log.read())
        (folder / f"{name}.err").write_text("")
    return folder.parent


def test_a_log_folder(tmp_path: Path, log_folder: Path) -> None:
    said = call(tmp_path / "results", log_folder, "--as", "logs")
    assert said.exit_code == 0, said.output
    found = ask(tmp_path / "results", "SELECT worker, role, count(*) AS n, min(t) >= 0 AS after FROM worker_samples GROUP BY ALL ORDER BY 1")
    assert [(r["worker"], r["role"], r["after"]) for r in found] == [("decode-0", "decode", True), ("prefill-0", "prefill", True)] and all(r["n"] > 10 for r in found)
    assert ask(tmp_path / "results", "SELECT requests, errors FROM runs") == [{"requests": 0, "errors": 0}]
    assert "logs: s1 cannot be decided in full without requests.decode_worker and requests.path" in said.output
    assert "logs: s4 cannot be decided in full without structural/admission-events.jsonl" in said.output, "the D's logs are there"


def test_a_log_folder_with_its_client(tmp_path: Path, log_folder: Path) -> None:
    lines(log_folder / "artifacts/run/profile_export.jsonl", aiperf_line(0))
    said = call(tmp_path / "results", log_folder, "--as", "both")
    assert said.exit_code == 0 and "requests are those of profile_export.jsonl" in said.output
    assert ask(tmp_path / "results", "SELECT requests FROM runs") == [{"requests": 1}]
    [moved] = ask(tmp_path / "results", "SELECT started_ts + dispatched_t AS ts, latency_s FROM requests JOIN runs USING (experiment, replicate)")
    assert moved == {"ts": pytest.approx(START_NS / 1e9, abs=1e-3), "latency_s": pytest.approx(1.5, abs=1e-5)}


# any client ----------------------------------------------------------------------------------------------------------

MINE = [{"id": 7, "user": {"session": "s"}, "sent": 1000.0, "ttft": 40, "total": 900, "code": 200, "in": 10, "out": 5},
        {"id": 8, "user": {"session": "s"}, "sent": 3000.0, "ttft": None, "total": 100, "code": 503, "in": 20, "out": 0}]  # fmt: skip
MAPPING = {"request_id": "id", "session": "user.session", "dispatched_t": {"field": "sent", "unit": "ms"}, "status": {"field": "code", "ok": [200]},
           "first_token_t": {"after": "dispatched_t", "field": "ttft", "unit": "ms"}, "finished_t": {"after": "dispatched_t", "field": "total", "unit": "ms"},
           "input_tokens": "in", "output_tokens": "out", "path": {"value": "dp"}}  # fmt: skip


def mapped(tmp_path: Path, mapping: dict[str, Any], *rows: dict[str, Any]) -> Result:
    (tmp_path / "map.yaml").write_text(yaml.safe_dump(mapping))
    return call(tmp_path / "results", lines(tmp_path / "mine.jsonl", *(rows or MINE)), "--mapping", tmp_path / "map.yaml", "--as", "mine")


def test_any_client_through_a_mapping(tmp_path: Path) -> None:
    said = mapped(tmp_path, MAPPING)
    assert said.exit_code == 0, said.output
    assert known(tmp_path / "results") == [
        {"request_id": "7", "session": "s", "turn": 0, "path": "dp", "dispatched_t": 1.0, "first_token_t": 1.04, "finished_t": 1.9, "input_tokens": 10, "output_tokens": 5, "status": "ok"},
        {"request_id": "8", "session": "s", "turn": 1, "path": "dp", "dispatched_t": 3.0, "finished_t": 3.1, "input_tokens": 20, "output_tokens": 0, "status": "error"},
    ]
    assert "the mapping has no turn: turns are counted in the order of the file" in said.output


@pytest.mark.parametrize(("unit", "sent"), [("epoch_ms", 1764460800000.0), ("epoch_s", 1764460800.0), ("iso", "2025-11-30T01:00:00+01:00")])
def test_dates_make_the_earliest_moment_zero(tmp_path: Path, unit: str, sent: Any) -> None:
    assert mapped(tmp_path, {**MAPPING, "dispatched_t": {"field": "sent", "unit": unit}}, {**MINE[0], "sent": sent}).exit_code == 0
    [row] = ask(tmp_path / "results", "SELECT started_ts, dispatched_t, latency_s FROM requests JOIN runs USING (experiment, replicate)")
    assert row == {"started_ts": 1764460800.0, "dispatched_t": 0.0, "latency_s": pytest.approx(0.9)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"latency": "x"}, r"map\.yaml: latency: no column of requests; there are: request_id, "),
        ({"status": None}, r"status: expected the path of a field"),
        ({"status": "code"}, r"status\.ok: is missing"),
        ({"dispatched_t": "sent"}, r"dispatched_t\.unit: is missing; allowed: s, .*epoch_ms"),
        ({"dispatched_t": {"field": "sent", "unit": "hours"}}, r"dispatched_t\.unit: 'hours' is not allowed"),
        ({"finished_t": {"field": "end", "unit": "iso"}}, r"some moments are dates and some are not"),
        ({"first_token_t": {"after": "scheduled_t", "field": "ttft", "unit": "ms"}}, r"first_token_t\.after: 'scheduled_t' is no moment that this file maps"),
        ({"path": {"value": "router"}}, r"path\.value: 'router' is not allowed; allowed: seed, direct, fallback, dp"),
    ],
)
def test_a_wrong_mapping(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        mapped(tmp_path, {**MAPPING, **change})


def test_a_line_that_the_mapping_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'mine\.jsonl:1: column sent: "now" is not a number'):
        mapped(tmp_path, MAPPING, {**MINE[0], "sent": "now"})
    with pytest.raises(InputError, match=r"column sent: '2025-11-30T01:00:00' has no time zone"):
        mapped(tmp_path, {**MAPPING, "dispatched_t": {"field": "sent", "unit": "iso"}}, {**MINE[0], "sent": "2025-11-30T01:00:00"})


def test_claims_on_an_imported_run_say_what_is_missing(tmp_path: Path) -> None:
    call(tmp_path, lines(tmp_path / "b.jsonl", BENCH), "--as", "E0")
    decided = CliRunner().invoke(claims, ["--results", str(tmp_path), "--config", str(CONFIG)], catch_exceptions=False)
    assert decided.exit_code == 0, decided.output
    notes = {row["claim"]: row["notes"] for row in ask(tmp_path, "SELECT claim, notes FROM verdicts")}
    assert "the runs of E0 lack requests.decode_worker and requests.path" in notes["s1"]
    assert "the D's logs (logs/decode-*.log)" in notes["s2"]
    assert "lack" not in notes["s0"], "TTFT and errors are there"
