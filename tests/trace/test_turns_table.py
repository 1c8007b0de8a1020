"""The turns Parquet: a trace comes back as it was, and only whole files take the name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from apd_replay import schemas
from apd_replay.errors import InputError
from apd_replay.trace import table
from apd_replay.trace.load import load
from apd_replay.trace.model import Session, Trace, Turn
from apd_replay.trace.reading import read

CONFIG = Path(__file__).parent.parent.parent / "config"


def test_a_trace_comes_back_as_it_was(write: Any, turn: Any, tmp_path: Path) -> None:
    trace, _ = read(write("f.jsonl", turn("a", 1, 0, 512, hash_ids=[2**62]), turn("a", 2, 2.1, 1024), turn("<b>'\"", 1, 0.3, 5, 0)))
    table.write(trace, tmp_path / "deep" / "f.parquet")
    assert table.read(tmp_path / "deep" / "f.parquet") == trace == load(tmp_path / "deep" / "f.parquet")
    stored = pq.read_table(tmp_path / "deep" / "f.parquet")
    assert stored.schema.equals(schemas.arrow(schemas.TURNS)) and stored.num_rows == 3
    assert stored.column("hash_ids").to_pylist() == [[2**62], None, None] and stored.column("gap_s").to_pylist() == [None, 2.1, None]
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["f.parquet"]


def test_the_built_in_trace_comes_back_as_it_was(tmp_path: Path) -> None:
    trace = load("swebench-52", config_dir=CONFIG)
    table.write(trace, tmp_path / "t.parquet")
    assert load(tmp_path / "t.parquet") == trace


def test_a_failed_write_leaves_the_old_file(write: Any, turn: Any, tmp_path: Path) -> None:
    file = tmp_path / "f.parquet"
    trace, _ = read(write("f.jsonl", turn("a", 1, 0, 512)))
    table.write(trace, file)
    before = file.read_bytes()
    bad = Trace("bad", "", (Session("a", (Turn("a", 0, 0.0, None, None, 2**40, 1),)),))
    with pytest.raises((pa.ArrowException, OverflowError)):
        table.write(bad, file)
    assert file.read_bytes() == before and [p.name for p in tmp_path.glob("*parquet*")] == ["f.parquet"]


def test_other_parquet_files_are_refused(write: Any, turn: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": [1]}), file)
    with pytest.raises(InputError, match="no turns table: column trace is missing"):
        load(file)
    trace, _ = read(write("f.jsonl", turn("a", 1, 0, 5), turn("a", 2, 1, 9)))
    table.write(trace, file)
    pq.write_table(pq.read_table(file).take([1, 0]), file)
    with pytest.raises(InputError, match="rows are not in order"):
        load(file)
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(InputError, match="not a readable Parquet file"):
        load(file)
