"""Figures of a grid's cell: the same numbers as the claims' own SQL finds in the warehouse."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from apd_replay import configuration
from apd_replay.cells import cell
from apd_replay.claims.evidence import gather
from apd_replay.warehouse import database

ROOT = Path(__file__).parents[2]
LIST = """\
defaults: {engine: sim, time_scale: 10, replicates: 2, concurrency: 6, first_turns: 6, first_sessions: 12, kv_pool_scale: 0.2, request_timeout_s: 20}
experiments:
  E0: {cluster: 2p6d, policy: kv_aware, resident: true}
  E6: {cluster: 8dp, policy: cache_aware}
grids:
  - {experiments: [E0], vary: {concurrency: {C2: 2}}, settings: {rows: no_logs}}
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three cells on a pool so small that turns fail."""
    folder = tmp_path_factory.mktemp("cells")
    for name in ("schema", "clusters", "hardware"):
        (folder / "config" / name).parent.mkdir(exist_ok=True)
        (folder / "config" / name).symlink_to(ROOT / "config" / name)
    (folder / "config/experiments").mkdir()
    (folder / "config/experiments/remedies.yaml").write_text(LIST)
    (folder / "config/config.yaml").write_text("matrix: remedies\n")
    (folder / "config/traces.yaml").write_bytes((ROOT / "config/traces.yaml").read_bytes())
    for name in configuration.load(folder / "config/config.yaml").experiments:
        assert cell.callback is not None
        cell.callback(name, folder / "results", folder / "config/config.yaml", "remedies", (), None)
    return folder / "results"


def rows(results: Path, experiment: str) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    found: list[dict[str, Any]] = pq.read_table(results / "figures" / f"{experiment}.parquet").to_pylist()
    return found


def test_every_figure_is_the_claims_own(results: Path) -> None:
    with database.connect(results) as connection:
        evidence = [r for claim in ("headline", "s1") for r in gather(connection, claim) if r.replicate is not None and r.scope is None]
    compared = 0
    for experiment in ("E0", "E6"):
        for figures in rows(results, experiment):
            for r in evidence:
                if (r.experiment, r.replicate) == (experiment, figures["replicate"]) and r.metric in figures:
                    assert r.value == pytest.approx(figures[r.metric]) or (math.isinf(r.value) and math.isinf(figures[r.metric])), (experiment, r.metric)
                    compared += 1
    assert compared >= 2 * 2 * 15


def test_only_runs_with_logs_are_named_for_claims(results: Path) -> None:
    assert sorted(p.name for p in (results / "runs").iterdir()) == ["E0", "E6"]
    [grid] = rows(results, "E0.C2")[:1]
    assert (grid["design"], grid["concurrency"], grid["kv_pool_scale"]) == ("E0", 2, 0.2)
    assert (results / "grid/store" / grid["run_id"] / "requests.jsonl").is_file()
    assert not any((results / "grid/store" / grid["run_id"] / "logs").iterdir())
