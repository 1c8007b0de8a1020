"""`apd claims` and `apd compare` from a results folder to what they write and print."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from apd_replay import schemas
from apd_replay.claims.command import claims, compare
from apd_replay.claims.comparing import Line
from apd_replay.claims.comparing import compare as compared
from apd_replay.claims.rules import load
from apd_replay.errors import ApdError
from apd_replay.warehouse import database

from .conftest import World

CONFIG = Path(__file__).parents[2] / "config"


@pytest.fixture
def three_each(world: World) -> World:
    for r, (slow, fast) in enumerate(((3.0, 1.0), (3.2, 1.1), (3.4, 1.2)), 1):
        kvc = [{"finished_t": slow}] * 8 + [{"status": "error", "error_kind": "aborted"}] * 2
        world.run("E0", r, requests=kvc)
        world.run("E6", r, requests=[{"finished_t": fast, "first_token_t": 1.0, "path": "dp"}] * 10, cluster="8dp")
    return world


def lines(world: World, a: str, b: str) -> dict[str, Line]:
    with database.connect(world.results) as connection:
        return {line.metric: line for line in compared(connection, load(CONFIG), a, b).lines}


def test_claims_writes_its_files_and_the_tables_of_the_database(three_each: World) -> None:
    results = three_each.results
    done = CliRunner().invoke(claims, ["--results", str(results), "--config", str(CONFIG)], catch_exceptions=False)
    assert "headline  sim t: holds" in done.output
    folder = results / "claims"
    for table in (schemas.EVIDENCE, schemas.VERDICTS):
        assert pq.read_schema(folder / f"{table.name}.parquet").equals(schemas.arrow(table))
    with database.open_read_only(results) as connection:
        assert connection.execute("SELECT count(*) FROM verdicts").fetchone() == (len(load(CONFIG).claims),)
        assert connection.execute("SELECT count(*) FROM evidence").fetchone() == (pq.read_metadata(folder / "evidence.parquet").num_rows,)
    rows = list(csv.DictReader((folder / "verdicts.csv").read_text().splitlines()))
    assert {r["claim"]: r["verdict"] for r in rows}["headline"] == "holds"
    assert "| headline | KVC loses to DP on the same trace. | holds | 3 |" in (folder / "verdicts.md").read_text()
    # the workflow has the database as the input of these files: they must be the newer ones
    assert (results / "apd.duckdb").stat().st_mtime_ns <= min(f.stat().st_mtime_ns for f in folder.iterdir())


def test_the_same_runs_give_the_same_bytes(three_each: World) -> None:
    found = []
    for _ in range(2):
        CliRunner().invoke(claims, ["--results", str(three_each.results), "--config", str(CONFIG)], catch_exceptions=False)
        found.append((three_each.results / "claims" / "evidence.parquet").read_bytes())
    assert found[0] == found[1]


def test_compare_gives_ratio_interval_n_and_a_word(three_each: World) -> None:
    latency = lines(three_each, "E0", "E6")["latency_mean"]
    assert (latency.n, latency.word, latency.is_ratio) == ((3, 3), "differs", True)
    assert latency.low is not None and latency.high is not None and latency.low < latency.difference < latency.high
    assert latency.difference == pytest.approx((3.0 * (3.2 / 1.1) * (3.4 / 1.2)) ** (1 / 3))


def test_compare_takes_errors_as_a_difference_of_rates_and_leaves_the_infinite_open(three_each: World) -> None:
    found = lines(three_each, "E0", "E6")
    assert (found["errors"].is_ratio, found["errors"].difference, found["errors"].a) == (False, pytest.approx(0.2), 2.0)
    assert (found["response_p90"].a, found["response_p90"].low, found["response_p90"].word) == (float("inf"), None, "undecided")


def test_compare_is_what_the_claims_found(three_each: World) -> None:
    line = lines(three_each, "E0", "E6")["response_mean"]
    with database.connect(three_each.results) as connection:
        from apd_replay.claims.deciding import decide_all

        [row] = [r for r in decide_all(connection, load(CONFIG)).evidence if (r.claim, r.metric, r.scope) == ("headline", "response_mean", "E0/E6")]
    assert (row.value, row.low, row.high) == (line.difference, line.low, line.high)


def test_compare_refuses_what_must_not_be_compared(three_each: World) -> None:
    three_each.run("small", 1, requests=[{"path": "dp"}], cluster="4dp")
    with pytest.raises(ApdError, match="refused: KVC and DP differ in GPUs"):
        lines(three_each, "E0", "small")
    with pytest.raises(ApdError, match="no run of experiment E9; there are: E0, E6, small"):
        lines(three_each, "E0", "E9")


def test_compare_prints_what_else_could_explain_it(three_each: World) -> None:
    done = CliRunner().invoke(compare, ["E0", "E6", "--results", str(three_each.results), "--config", str(CONFIG)], catch_exceptions=False)
    assert "paired by seed" in done.output and "could also explain it: cluster: 2p6d against 8dp" in done.output
