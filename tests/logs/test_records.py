"""Rows of a run directory become tables: exact types, missing keys null, one clear line for what cannot be read."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from apd_replay import schemas
from apd_replay.errors import InputError
from apd_replay.logs.records import FILES, table_path, write_record_tables

REQUEST = {"request_id": "a-0", "session": "a", "turn": 0, "path": "seed", "prefill_worker": "prefill-0", "decode_worker": "decode-1",
           "scheduled_t": 0, "dispatched_t": 0.5, "first_token_t": 1.25, "finished_t": 2, "input_tokens": 10, "output_tokens": 2,
           "admission": "none", "bootstrap_room": 2**62 + 1, "status": "ok"}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    (directory / "structural").mkdir(parents=True)
    return directory


def write(file: Path, *rows: dict[str, Any], end: str = "") -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + end)


def read(out: Path, table: str) -> list[dict[str, Any]]:
    return pq.read_table(table_path(out, table, "E0", 1), partitioning=None).to_pylist()


def test_every_table_has_exactly_its_schema_also_when_empty(run: Path, tmp_path: Path) -> None:
    write(run / "requests.jsonl", REQUEST)
    assert write_record_tables(run, tmp_path, "E0", 1, 100.0) == []
    for file in FILES:
        found = pq.read_schema(table_path(tmp_path, file.table.name, "E0", 1))
        assert found.equals(schemas.arrow(file.table)), file.table.name


def test_missing_keys_are_null_and_unknown_keys_are_left_out(run: Path, tmp_path: Path) -> None:
    write(run / "requests.jsonl", {**REQUEST, "something_new": [1]})
    write_record_tables(run, tmp_path, "E0", 1, 100.0)
    [row] = read(tmp_path, "requests")
    assert row["slot_lost"] is None and row["cached_tokens"] is None and "something_new" not in row
    assert row["bootstrap_room"] == 2**62 + 1 and row["finished_t"] == 2.0


def test_structural_logs_get_times_and_names_of_the_contract(run: Path, tmp_path: Path) -> None:
    write(run / "requests.jsonl", REQUEST)
    write(run / "structural/session-d-binding.jsonl", {"timestamp": 100.5, "session": "a", "D": "decode-1", "turn_id": 0})
    write(run / "structural/backpressure-events.jsonl", {"timestamp": 103, "D": "decode-0", "sleep_ms": 1500, "queue_depth_at_signal": 9})
    write_record_tables(run, tmp_path, "E0", 1, 100.0)
    key = {"experiment": "E0", "replicate": 1}
    assert read(tmp_path, "bindings") == [{**key, "t": 0.5, "ts": 100.5, "session": "a", "decode_worker": "decode-1", "turn": 0}]
    assert read(tmp_path, "pauses") == [{**key, "t": 3.0, "ts": 103.0, "decode_worker": "decode-0", "sleep_ms": 1500.0, "queue_depth_at_signal": 9}]


def test_a_cut_last_line_is_reported_and_what_is_before_it_counts(run: Path, tmp_path: Path) -> None:
    write(run / "requests.jsonl", REQUEST, {**REQUEST, "request_id": "a-1"}, end='{"request_id": "a-2", "sess')
    [notice] = write_record_tables(run, tmp_path, "E0", 1, 100.0)
    assert notice.endswith("requests.jsonl:3: the last line is cut; the 2 before it count")
    assert [r["request_id"] for r in read(tmp_path, "requests")] == ["a-0", "a-1"]


def test_a_whole_last_line_without_its_newline_counts(run: Path, tmp_path: Path) -> None:
    (run / "requests.jsonl").write_text(json.dumps(REQUEST))
    assert write_record_tables(run, tmp_path, "E0", 1, 100.0) == []
    assert len(read(tmp_path, "requests")) == 1


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{oops}", "requests.jsonl:2: not valid JSON"),
        ("[1]", "requests.jsonl:2: not a JSON object"),
        (json.dumps({**REQUEST, "turn": "x"}), 'requests.jsonl:2: column turn: "x" is not a whole number'),
        (json.dumps({**REQUEST, "turn": 2**31}), "requests.jsonl:2: column turn: 2147483648 is not a whole number"),
        (json.dumps({**REQUEST, "session": None}), "requests.jsonl:2: column session: is missing; expected text"),
        (json.dumps({**REQUEST, "path": "detour"}), "requests.jsonl:2: column path: 'detour' is not allowed; allowed: seed, direct"),
        (json.dumps({**REQUEST, "error_kind": "gremlins"}), "requests.jsonl:2: column error_kind: 'gremlins' is not allowed"),
        (json.dumps({**REQUEST, "scheduled_t": float("nan")}), "requests.jsonl:2: not valid JSON (NaN is not a JSON number)"),
    ],
)
def test_a_wrong_line_is_named_and_nothing_is_written(run: Path, tmp_path: Path, line: str, expected: str) -> None:
    write(run / "requests.jsonl", REQUEST, end=line + "\n" + json.dumps(REQUEST) + "\n")
    with pytest.raises(InputError) as error:
        write_record_tables(run, tmp_path, "E0", 1, 100.0)
    assert expected in str(error.value)
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_run_without_requests_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"requests\.jsonl: is missing"):
        write_record_tables(run, tmp_path, "E0", 1, 100.0)
