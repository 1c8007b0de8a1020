"""A run's name changes with what decides it, and with nothing else."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from apd_replay.configuration import Experiment, load
from apd_replay.errors import RunError
from apd_replay.replay import identity

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return load(CONFIG).experiments["E0"]


def changed(experiment: Experiment, **settings: Any) -> Experiment:
    return dataclasses.replace(experiment, settings={**experiment.settings, **settings})


@pytest.mark.parametrize("engine", identity.DECIDING_CODE)
def test_the_deciding_code_has_not_drifted(engine: str) -> None:
    """Code that decides replays was edited: `python workflow/scripts/revision.py keep|bump ENGINE` says whether results change."""
    locked = json.loads(identity.REVISIONS.read_text())[engine]["code"]
    assert identity.code_digest(engine) == locked, f"run: python workflow/scripts/revision.py keep {engine}   (same results)   or   bump {engine}"


def test_deciding_files_are_named_and_found() -> None:
    names = {f.relative_to(identity.PACKAGE).as_posix() for f in identity.deciding_files("sim")}
    assert {"replay/core.py", "replay/plan.py", "routing/kv_aware.py", "trace/model.py"} <= names
    assert not names & {"replay/store.py", "replay/identity.py", "schemas.py"}


@pytest.mark.parametrize("change", [{"concurrency": 7}, {"backpressure": "linear"}, {"mechanisms": {"latch": False}}])
def test_what_decides_a_run_renames_it(experiment: Experiment, change: dict[str, Any]) -> None:
    assert identity.run_id(changed(experiment, **change), 1, "t") != identity.run_id(experiment, 1, "t")


@pytest.mark.parametrize("change", [{"title": "x"}, {"replicates": 3}, {"slo_ttft_s": 9.0}, {"warmup_turns": 2}, {"trace": "moved.jsonl"}])
def test_what_only_the_analysis_reads_does_not(experiment: Experiment, change: dict[str, Any]) -> None:
    assert identity.run_id(changed(experiment, **change), 1, "t") == identity.run_id(experiment, 1, "t")


def test_replicate_trace_and_revision_rename_it(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity.run_id(experiment, 1, "t")
    assert before != identity.run_id(experiment, 2, "t")
    assert before != identity.run_id(experiment, 1, "u")
    monkeypatch.setattr(identity, "revision", lambda engine: 999)
    assert before != identity.run_id(experiment, 1, "t")


def test_versions_count_for_real_servers_only(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"sglang": "0.5.23", "python": "3.11.7", "apd-replay": "1"}
    monkeypatch.setattr(identity.servers_environment, "python", lambda: "python")
    monkeypatch.setattr(identity.servers_environment, "versions", lambda _: found)
    assert identity.environment("sim") == {}
    assert identity.environment("sglang") == {"sglang": "0.5.23"}
    real = changed(experiment, engine="sglang")
    before = identity.cell(real, 1)
    found["sglang"] = "0.5.24"
    assert identity.cell(real, 1) != before


def test_a_job_planned_before_an_edit_is_refused(experiment: Experiment) -> None:
    planned = identity.cell(experiment, 1)
    assert identity.run_id(experiment, 1, "t", expected=planned)
    with pytest.raises(RunError, match="changed since this job was planned"):
        identity.run_id(changed(experiment, concurrency=7), 1, "t", expected=planned)
