"""Run directories from elsewhere: taken in whole, or refused with one line and nothing written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from apd_replay.errors import ApdError, InputError
from apd_replay.warehouse import database
from apd_replay.warehouse.importing import import_runs

RUN = {"experiment": "E0", "replicate": 1, "engine": "sglang", "status": "complete", "trace": "t", "trace_digest": "x", "cluster": "1p1d", "policy": "kv_aware",
       "time_scale": 10, "concurrency": 32, "seed": 1, "model": "m", "started_ts": 1777996800.0, "duration_s": 3.0, "requests": 2, "errors": 1,
       "versions": {"sglang": "0.5.21"}, "config": {"warmup_turns": 0}}  # fmt: skip
REQUEST = {"request_id": "a-0", "session": "a", "turn": 0, "path": "seed", "prefill_worker": "prefill-0", "decode_worker": "decode-0", "scheduled_t": 0.0,
           "dispatched_t": 0.0, "first_token_t": 0.5, "finished_t": 1.0, "input_tokens": 9, "output_tokens": 3, "admission": "none", "status": "ok"}  # fmt: skip
FAILED = {**REQUEST, "request_id": "a-1", "turn": 1, "first_token_t": None, "status": "error", "error_kind": "aborted"}


def make(directory: Path, rows: list[dict[str, Any]] | None = None, **run: Any) -> Path:
    (directory / "logs").mkdir(parents=True)
    (directory / "structural").mkdir()
    (directory / "requests.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows or [REQUEST, FAILED]))
    (directory / "logs" / "decode-0.log").write_text("[2026-05-05 16:00:01] Session trim: evicted 2 idle sessions, 512 tokens freed\n")
    (directory / "run.json").write_text(json.dumps({**RUN, **run}))
    return directory


def ask(results: Path, query: str) -> list[tuple[Any, ...]]:
    with database.open_read_only(results) as connection:
        return connection.execute(query).fetchall()


def take_in(*directories: Path, results: Path, **more: Any) -> None:
    import_runs(list(directories), results, say=lambda _: None, **more)
    database.build(results)


def test_an_imported_run_is_stored_named_and_in_the_database(tmp_path: Path) -> None:
    results = tmp_path / "results"
    take_in(make(tmp_path / "run"), results=results)
    manifest = json.loads((results / "runs/E0/r1.json").read_text())
    assert (results / "store" / manifest["run_id"] / "requests.jsonl").is_file()
    assert ask(results, "SELECT experiment, replicate, engine, errors, versions ->> '$.sglang' FROM runs") == [("E0", 1, "sglang", 1, "0.5.21")]
    assert ask(results, "SELECT request_id, latency_s, response_s FROM requests ORDER BY turn") == [("a-0", 1.0, 1.0), ("a-1", None, float("inf"))]
    assert ask(results, "SELECT kind, tokens, t FROM worker_events WHERE kind = 'trim'") == [("trim", 512, 1.0)]


def test_importing_twice_changes_nothing(tmp_path: Path) -> None:
    results, run = tmp_path / "results", make(tmp_path / "run")
    take_in(run, results=results)
    before = (results / "runs/E0/r1.json").read_bytes()
    take_in(run, results=results)
    assert (results / "runs/E0/r1.json").read_bytes() == before
    assert len([p for p in (results / "store").iterdir() if not p.name.startswith(".")]) == 1


def test_another_run_of_the_same_replicate_is_refused_or_takes_another_id(tmp_path: Path) -> None:
    results = tmp_path / "results"
    take_in(make(tmp_path / "one"), results=results)
    other = make(tmp_path / "two", seed=5)
    with pytest.raises(ApdError, match=r"has another run of E0 replicate 1 .* --as ID"):
        take_in(other, results=results)
    take_in(other, results=results, experiment="E0@again")
    assert ask(results, "SELECT experiment, seed FROM runs ORDER BY ALL") == [("E0", 1), ("E0@again", 5)]


def test_an_id_means_one_engine_and_one_trace(tmp_path: Path) -> None:
    results = tmp_path / "results"
    take_in(make(tmp_path / "one"), results=results)
    with pytest.raises(ApdError, match=r"trace 'other', but replicate 1 of E0 has 't'"):
        take_in(make(tmp_path / "two", replicate=2, trace="other"), results=results)
    with pytest.raises(ApdError, match=r"are both E0 replicate 3"):
        take_in(make(tmp_path / "three", replicate=3), make(tmp_path / "four", replicate=3, seed=2), results=results)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ({"requests": 3}, r"run\.json: says 3 requests and 1 errors, but requests\.jsonl has 2 and 1"),
        ({"errors": 0}, r"says 2 requests and 0 errors"),
        ({"started_ts": None}, r"run\.json: column started_ts: is missing; expected a number"),
        ({"replicate": "one"}, r"column replicate: \"one\" is not a whole number"),
        ({"engine": "vllm"}, r"column engine: 'vllm' is not allowed; allowed: sglang, sim, emulator, imported"),
        ({"experiment": "../../etc"}, r"column experiment: '../../etc' cannot name a folder"),
        ({"trace": "a/b"}, r"column trace: 'a/b' cannot name a folder"),
        ({"experiment": "E0'; DROP TABLE runs; --"}, r"cannot name a folder"),
    ],
)
def test_a_run_json_that_breaks_the_contract(tmp_path: Path, run: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        take_in(make(tmp_path / "run", **run), results=tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_one_wrong_directory_among_several_leaves_nothing_behind(tmp_path: Path) -> None:
    good, bad = make(tmp_path / "good"), make(tmp_path / "bad", replicate=2)
    (bad / "requests.jsonl").write_text(json.dumps(REQUEST) + "\nnot json\n" + json.dumps(FAILED) + "\n")
    with pytest.raises(InputError, match=r"bad/requests\.jsonl:2: not valid JSON"):
        take_in(good, bad, results=tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_other_things_that_are_no_run_directories(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no file or folder"):
        take_in(tmp_path / "nowhere", results=tmp_path / "results")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: run\.json is missing, and nothing else in it is known; run\.json marks a whole run"):
        take_in(tmp_path / "empty", results=tmp_path / "results")
    twice = make(tmp_path / "twice", rows=[REQUEST, {**FAILED, "request_id": "a-0"}])
    with pytest.raises(InputError, match=r"request_id 'a-0' stands there twice"):
        take_in(twice, results=tmp_path / "results")
    linked = make(tmp_path / "linked")
    (linked / "logs" / "secret.log").symlink_to("/etc/hostname")
    with pytest.raises(InputError, match=r"secret\.log: is a link"):
        take_in(linked, results=tmp_path / "results")


def test_a_results_folder_is_no_source(tmp_path: Path) -> None:
    results = tmp_path / "results"
    take_in(make(tmp_path / "run"), results=results)
    stored = next(p for p in (results / "store").iterdir() if p.is_dir())
    with pytest.raises(InputError, match="lies in the results folder"):
        take_in(stored, results=tmp_path / "elsewhere")


def test_a_trace_comes_in_under_the_name_that_the_runs_give_it(tmp_path: Path) -> None:
    trace = tmp_path / "recorded.jsonl"
    rows = [{"session_id": "a", "turn": k, "timestamp": 5.0 * k, "input_length": 9 + 20 * k, "output_length": 3, "hash_ids": [1]} for k in range(2)]
    trace.write_text("".join(json.dumps(r) + "\n" for r in rows))
    take_in(make(tmp_path / "run"), results=tmp_path / "results", trace_file=trace)
    assert ask(tmp_path / "results", "SELECT trace, session, turn, gap_s FROM turns ORDER BY turn") == [("t", "a", 0, None), ("t", "a", 1, 5.0)]
    digest = {"trace_digest": "0" * 64}
    with pytest.raises(InputError, match="give the trace that was replayed"):
        take_in(make(tmp_path / "other", replicate=2, **digest), results=tmp_path / "results", trace_file=trace)


def test_only_runs_that_a_manifest_names_are_seen_and_the_folder_can_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results"
    take_in(make(tmp_path / "one"), make(tmp_path / "two", replicate=2), results=results)
    (results / "runs/E0/r2.json").unlink()  # its tables still lie there
    database.build(results)
    assert ask(results, "SELECT DISTINCT replicate FROM requests") == [(1,)]
    moved = tmp_path / "moved"
    shutil.move(results, moved)
    assert ask(moved, "SELECT count(*) FROM requests") == [(2,)]
    monkeypatch.chdir(moved)
    with duckdb.connect("apd.duckdb", read_only=True) as connection:  # as `duckdb -init catalog.sql` does: from inside the folder
        assert connection.execute("SELECT count(*) FROM requests").fetchall() == [(2,)]


def test_a_manifest_without_its_tables_says_which_command_makes_them(tmp_path: Path) -> None:
    results = tmp_path / "results"
    take_in(make(tmp_path / "one"), results=results)
    shutil.rmtree(results / "tables" / "bindings")
    with pytest.raises(ApdError, match=r"bindings/experiment=E0/replicate=1/part-0\.parquet: no such file.*apd parse --run"):
        database.build(results)
