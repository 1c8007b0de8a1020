"""The machine's clock is set during a run (NTP, a person): every duration, and the order of things, stays as it was."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from test_run import TRACE, experiment, fakes, rows

from apd_replay.cluster import run as running
from apd_replay.logs.run import parse_run

STEPS_S = (-86_400.0, -3.0, 3.0, 86_400.0)


@pytest.mark.parametrize("step_s", STEPS_S)
def test_a_step_of_the_clock_changes_no_duration(tmp_path: Path, step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock on the wall jumps with every look at it, a different way each time; twelve requests of three turns."""
    looks: list[float] = []
    real = time.time

    def jumping() -> float:
        looks.append(step_s)
        return real() + step_s * len(looks)

    monkeypatch.setattr(time, "time", jumping)
    begin = time.monotonic()
    running.run(experiment(loads_every_s=0.05), TRACE, 1, tmp_path / "run", launcher=fakes)
    took = time.monotonic() - begin
    assert looks, "nobody looks at the clock: then this test shows nothing"
    manifest = json.loads((tmp_path / "run/run.json").read_text())
    assert 0 < manifest["duration_s"] <= took
    found = rows(tmp_path / "run")
    assert len(found) == 12 and all(r["status"] == "ok" for r in found)
    for r in found:
        assert 0 <= r["scheduled_t"] <= r["dispatched_t"] <= r["first_token_t"] <= r["finished_t"] <= took
    by_turn = {(r["session"], r["turn"]): r for r in found}
    for (session, turn), r in by_turn.items():
        before = by_turn.get((session, turn - 1))
        assert before is None or r["dispatched_t"] >= before["finished_t"] + 0.02 - 1e-6, "the gap is kept"
    monkeypatch.undo()
    parse_run(tmp_path / "run", tmp_path / "tables", experiment="c", replicate=1)
    assert moments(tmp_path / "tables", "loads", took) > 0


def moments(tables: Path, table: str, took: float) -> int:
    """How many rows there are; every `t` of them lies within the run, since it is no difference of two looks at the clock."""
    import pyarrow.parquet as pq

    found: list[Any] = pq.ParquetFile(tables / table / "experiment=c/replicate=1/part-0.parquet").read(["t"])["t"].to_pylist()
    assert all(t is not None and 0 <= t <= took for t in found)
    return len(found)
