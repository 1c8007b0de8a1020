"""docs/sql.md, followed word for word: every question asked, in our own command, in DuckDB's command line, and while a pipeline writes."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import pytest

from apd_replay.logs.run import parse_run
from apd_replay.replay import store
from apd_replay.warehouse import database
from apd_replay.warehouse.query import as_text, ask

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from example_results import BLOCK, make  # noqa: E402

PAGE = (ROOT / "docs/sql.md").read_text(encoding="utf-8")
QUESTIONS = [(m["query"], m["answer"]) for m in BLOCK.finditer(PAGE)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("example") / "results")


def test_there_are_twenty() -> None:
    assert len(QUESTIONS) == 20 == PAGE.count("\n## ")


@pytest.mark.parametrize("number", range(1, 21))
def test_every_answer_is_the_one_on_the_page(results: Path, number: int) -> None:
    query, answer = QUESTIONS[number - 1]
    assert as_text(ask(results, query)) == answer
    assert "(0 rows)" not in answer, "a question without an answer shows nothing"


def duckdb_cli() -> str:
    """The command line that pip installs; older than the library, so it shows that the storage version is right."""
    found = shutil.which("duckdb", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if found is None:
        pytest.skip("no duckdb command line: pip install duckdb-cli")
    return found


def test_every_question_in_duckdbs_command_line(results: Path, tmp_path: Path) -> None:
    """All in one session, as CSV; compared by the number of rows and the first column."""
    moved = shutil.copytree(results, tmp_path / "moved")
    script = ".mode csv\n" + "".join(f".print ==\n{query}" for query, _ in QUESTIONS)
    done = subprocess.run([duckdb_cli(), "-init", "catalog.sql"], cwd=moved, input=script, capture_output=True, text=True)
    assert "Error" not in done.stderr, done.stderr
    parts = done.stdout.split("==\n")[1:]
    assert len(parts) == len(QUESTIONS)
    for (query, _), part in zip(QUESTIONS, parts, strict=True):
        rows = list(csv.reader(io.StringIO(part)))
        own = ask(results, query)
        assert len(rows) - 1 == own.num_rows, query
        assert [row[0] for row in rows[1:]] == [str(value) for value in own.column(0).to_pylist()], query


def test_the_command_line_can_not_write(results: Path) -> None:
    done = subprocess.run([duckdb_cli(), "-init", "catalog.sql", "-c", "DELETE FROM runs"], cwd=results, capture_output=True, text=True)
    assert "read-only" in done.stderr


def test_python_as_on_the_page(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(results)
    with duckdb.connect("apd.duckdb", read_only=True) as con:
        assert len(con.sql("FROM latency_quantiles('E0')").fetchall()) == 3
    monkeypatch.chdir("/")
    with duckdb.connect(str(results / "apd.duckdb"), read_only=True) as con:
        con.execute(f"SET file_search_path = '{results}'")
        assert len(con.sql("FROM latency_quantiles('E0')").fetchall()) == 3


def test_read_while_a_pipeline_writes(results: Path, tmp_path: Path) -> None:
    """Parse and warehouse rewrite everything, over and over; two readers ask all the while: no answer fails, and each is whole."""
    busy = shutil.copytree(results, tmp_path / "busy")
    done = threading.Event()
    asked: list[int] = []
    wrong: list[str] = []

    def read() -> None:
        while not done.is_set():
            try:
                [row] = ask(busy, "SELECT count(*) AS n, count(DISTINCT (experiment, replicate)) AS runs, (SELECT count(*) FROM runs) AS named FROM requests").to_pylist()
                asked.append(1)
                if row != {"n": 180, "runs": 6, "named": 6}:
                    wrong.append(str(row))
            except Exception as error:
                wrong.append(repr(error))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(5):
        for manifest in store.manifests(busy):
            parse_run(store.stored(busy, manifest["run_id"]), busy / "tables", experiment=manifest["experiment"], replicate=manifest["replicate"])
        database.build(busy)
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == [] and len(asked) > 10
