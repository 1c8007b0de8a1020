"""`apd sql`: four forms, read-only, and text that must not drive a terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from apd_replay import schemas
from apd_replay.errors import ApdError, InputError
from apd_replay.warehouse import database
from apd_replay.warehouse.command import sql
from apd_replay.warehouse.query import as_text, ask, render

QUERY = "SELECT 1 AS a, 'x\x1b[31mred' AS b, [1, 2] AS c, 'inf'::DOUBLE AS d, NULL AS e"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    database.build(tmp_path)
    return tmp_path


def test_a_folder_without_runs_has_all_tables_and_no_row(results: Path) -> None:
    found = {r["table_name"] for r in ask(results, "SELECT table_name FROM information_schema.tables").to_pylist()}
    assert found >= {"runs", "turns", "requests", "sessions", "attempts", "links", "evidence", "verdicts", "worker_samples", "transfers"}
    for table in found:
        assert ask(results, f"SELECT * FROM {table}").num_rows == 0


def test_every_view_and_macro_is_documented(results: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/results.md").read_text()
    views = {r["view_name"] for r in ask(results, "SELECT view_name FROM duckdb_views() WHERE NOT internal").to_pylist()} - set(schemas.TABLES) | {"requests"}
    macros = {r["function_name"] for r in ask(results, "SELECT function_name FROM duckdb_functions() WHERE NOT internal AND function_type LIKE '%macro'").to_pylist()}
    assert len(views) > 5 and len(macros) > 3
    assert {v for v in views if f"| `{v}` |" not in page} == set()
    assert {m for m in macros if f"| `{m}(" not in page} == set()


def test_forms(results: Path) -> None:
    answer = ask(results, QUERY)
    assert json.loads(render(answer, "json")) == [{"a": 1, "b": "x\x1b[31mred", "c": [1, 2], "d": "inf", "e": None}]
    assert render(answer, "csv").decode().splitlines()[0] == '"a","b","c","d","e"'
    assert pq.read_table(io.BytesIO(render(answer, "parquet"))).num_rows == 1


def test_a_printed_table_escapes_what_could_drive_a_terminal(results: Path) -> None:
    text = render(ask(results, QUERY), "table").decode()
    assert "\x1b" not in text and "x\\x1b[31mred" in text and text.endswith("(1 row)\n")
    nasty = "\x07\r\n\x9b\u202e\u2028"
    assert not set(nasty[:2] + nasty[3:]) & set(as_text(pa.table({nasty: [nasty]})))


def test_wide_characters_stay_aligned() -> None:
    lines = as_text(pa.table({"名": ["会话", "a"], "n": [1, 22]})).splitlines()
    assert lines[2:4] == ["会话   1", "a     22"]


def test_command_prints_and_writes(results: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke(sql, ["SELECT 42 AS answer", "--results", str(results), "--format", "csv"])
    assert run.output == '"answer"\n42\n'
    out = tmp_path / "answer.parquet"
    CliRunner().invoke(sql, ["SELECT 42 AS answer", "--results", str(results), "--format", "parquet", "--out", str(out)])
    assert pq.read_table(out).to_pylist() == [{"answer": 42}]


def test_the_database_is_read_only_and_errors_are_one_line(results: Path) -> None:
    for query in ("DELETE FROM runs", "SELEC 1", "SELECT * FROM nowhere"):
        with pytest.raises(ApdError, match=r"^sql: ") as error:
            ask(results, query)
        assert "\n" not in str(error.value)


def test_without_a_database_the_message_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"apd\.duckdb: no such file; apd warehouse"):
        ask(tmp_path, "SELECT 1")


def test_readers_of_the_old_file_keep_it(results: Path) -> None:
    with database.open_read_only(results) as before:
        database.build(results)
        assert before.execute("SELECT count(*) FROM runs").fetchall() == [(0,)]
    assert [p.name for p in results.iterdir() if p.name.startswith(".")] == []
