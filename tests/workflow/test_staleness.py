"""What makes which stage run again, counted in jobs. The whole point of the store: a replay runs again only for its reasons."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from small_project import Project

from apd_replay.replay import store

LATER = {"warehouse": 1, "decide": 1, "write_report": 1}
TABLE = "results/tables/requests/experiment=A@tiny/replicate=1/part-0.parquet"


def touch_everything(project: Project) -> None:
    for file in sorted((project.folder / "apd_replay").rglob("*.py")):
        os.utime(file)


def older_edit(project: Project) -> None:
    """An edit that keeps the file's time, as rsync -t and tar make it."""
    file = project.folder / "apd_replay/logs/command.py"
    before = file.stat()
    file.write_text(file.read_text() + "\nEDITED = 1\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def append(file: str, text: str) -> Callable[[Project], None]:
    def change(project: Project) -> None:
        with open(project.folder / file, "a") as out:
            out.write(text)

    return change


def replace(file: str, old: str, new: str) -> Callable[[Project], None]:
    return lambda project: project.edit(file, old, new)


def remove(*names: str) -> Callable[[Project], None]:
    def change(project: Project) -> None:
        for name in names:
            place = project.folder / name
            shutil.rmtree(place) if place.is_dir() else place.unlink()

    return change


def edit_a_claim(project: Project) -> None:
    claim = sorted((project.folder / "apd_replay/claims").rglob("*.sql"))[0]
    claim.write_text(claim.read_text() + "\n-- another threshold\n")


def bump_the_simulator(project: Project) -> None:
    append("apd_replay/replay/core.py", "\nEDITED = 1\n")(project)
    subprocess.run([sys.executable, "workflow/scripts/revision.py", "bump", "sim"], cwd=project.folder, env=project.environment(), check=True, capture_output=True)


CHANGES: list[tuple[str, Callable[[Project], None], dict[str, int]]] = [
    ("nothing", lambda project: None, {}),
    ("all code touched", touch_everything, {}),
    ("parser: a comment", append("apd_replay/logs/command.py", "\n# why\n"), {}),
    ("parser: code", append("apd_replay/logs/command.py", "\nEDITED = 1\n"), {"parse": 4, **LATER}),
    ("parser: code, with an old time", older_edit, {"parse": 4, **LATER}),
    ("warehouse: code", append("apd_replay/warehouse/command.py", "\nEDITED = 1\n"), LATER),
    ("claim: SQL", edit_a_claim, {"decide": 1, "write_report": 1}),
    ("claim: a rule", append("config/claims.yaml", "\n# another threshold\n"), {"decide": 1, "write_report": 1}),
    ("report: code", append("apd_replay/report/command.py", "\nEDITED = 1\n"), {"write_report": 1}),
    ("simulator: code, not bumped", append("apd_replay/replay/core.py", "\nEDITED = 1\n"), {}),
    ("simulator: bumped", bump_the_simulator, {"replay": 4, "parse": 4, **LATER}),
    ("experiment: a key", replace("config/experiments/tiny.yaml", "resident: true", "resident: true, backpressure: linear"), {"replay": 2, "parse": 2, **LATER}),
    ("experiments: another one", append("config/experiments/tiny.yaml", "  C: {cluster: 8dp, policy: round_robin}\n"), {"replay": 2, "parse": 2, **LATER}),
    ("experiments: a replicate more", replace("config/experiments/tiny.yaml", "replicates: 2", "replicates: 3"), {"replay": 2, "parse": 2, **LATER}),
    ("trace: another turn", append("tiny.jsonl", '{"session_id": "s9", "turn": 0, "timestamp": 1.0, "input_length": 900, "output_length": 9}\n'),
     {"trace": 1, "replay": 4, "parse": 4, **LATER}),
    ("one table lost", remove(TABLE), {"parse": 1, **LATER}),
    ("one manifest lost", remove("results/runs/A@tiny/r1.json"), {"replay": 1, "parse": 1, **LATER}),
    ("verdicts lost", remove("results/claims/verdicts.csv"), {"decide": 1, "write_report": 1}),
    ("Snakemake's memory lost", remove(".snakemake"), {}),
]  # fmt: skip


@pytest.mark.parametrize(("change", "jobs"), [pytest.param(change, jobs, id=name) for name, change, jobs in CHANGES])
def test_what_a_change_makes_stale(project: Project, change: Callable[[Project], None], jobs: dict[str, int]) -> None:
    change(project)
    assert project.stale() == jobs


def test_force_all_replays_nothing_that_is_stored(project: Project) -> None:
    before = project.stored()
    assert len(before) == 4
    project.snakemake("--forceall", "report")
    assert project.stored() == before
    assert project.stale() == {}


def test_all_but_the_store_may_be_lost(project: Project) -> None:
    before = project.stored()
    for name in ("runs", "tables", "traces", "claims", "report", "apd.duckdb"):
        remove(f"results/{name}")(project)
    remove(".snakemake")(project)
    project.snakemake("report")
    assert project.stored() == before


def test_a_setting_of_the_analysis_reaches_the_tables_without_a_replay(project: Project) -> None:
    before = project.stored()
    project.edit("config/experiments/tiny.yaml", "replicates: 2", "replicates: 2, slo_ttft_s: 9.5")
    project.snakemake("report")
    assert project.stored() == before
    assert json.loads((project.folder / "results/runs/A@tiny/r1.json").read_text())["config"]["settings"]["slo_ttft_s"] == 9.5


def test_reverting_an_experiment_finds_its_old_runs(project: Project) -> None:
    before = project.stored()
    project.edit("config/experiments/tiny.yaml", "concurrency: 2", "concurrency: 3")
    project.snakemake("report")
    both = project.stored()
    assert len(both) == 8 and before.items() <= both.items()
    project.edit("config/experiments/tiny.yaml", "concurrency: 3", "concurrency: 2")
    project.snakemake("report")
    assert project.stored() == both


def add_run(project: Project, experiment: str, engine: str, **facts: str) -> None:
    """A run as `apd import` or a GPU machine leaves it: in the store, with a manifest."""
    results = project.folder / "results"
    source = next(p for p in (results / "store").iterdir() if not p.name.startswith("."))
    with store.adding(results, "feedfeedfeedfeed") as directory:
        assert directory is not None
        shutil.copytree(source, directory, dirs_exist_ok=True)
        run = {**json.loads((source / "run.json").read_text()), "experiment": experiment, "replicate": 1, "engine": engine}
        (directory / "run.json").write_text(json.dumps(run))
    store.write_manifest(results, experiment, 1, "feedfeedfeedfeed", **facts)


def test_an_imported_run_is_parsed_and_reported_and_never_replayed(project: Project) -> None:
    add_run(project, "X", "imported")
    assert project.stale() == {"parse": 1, **LATER}
    assert project.stale("--forceall")["replay"] == 4


def test_an_imported_run_is_never_replaced_by_a_replay_of_the_same_id(project: Project) -> None:
    remove("results/runs/A@tiny/r1.json")(project)
    add_run(project, "A@tiny", "imported")
    refused = project.snakemake("report", check=False)
    assert refused.returncode != 0 and "r1.json: experiment: is an imported run of an experiment that is also to be replayed" in refused.stderr


def test_imported_runs_alone_make_a_report(project: Project) -> None:
    add_run(project, "X", "imported")
    results = project.folder / "theirs"
    (results / "store").mkdir(parents=True)
    (results / "runs").mkdir()
    (project.folder / "results/store/feedfeedfeedfeed").rename(results / "store/feedfeedfeedfeed")
    (project.folder / "results/runs/X").rename(results / "runs/X")
    alone = ("report", "--config", "matrix=imported", "results=theirs")
    assert project.stale(*alone) == {"parse": 1, **LATER}
    project.snakemake(*alone)
    assert "<html" in (results / "report/report.html").read_text()


def test_a_gpu_run_that_exists_is_never_replayed_by_itself(project: Project) -> None:
    gpu = "  G: {cluster: 2p6d, policy: kv_aware, engine: sglang, replicates: 2}\n"
    append("config/experiments/tiny.yaml", gpu)(project)
    assert project.stale()["replay"] == 2
    add_run(project, "G@sglang-tiny", "sglang", cell="of another configuration")
    assert project.stale()["replay"] == 1  # the replicate that is missing
    assert project.stale("--forceall")["replay"] == 5
    said = project.snakemake("--dry-run").stderr
    assert "r1.json was made by another configuration or revision and is kept; delete it to run G@sglang-tiny again" in said


def test_replicates_that_are_no_longer_asked_for_leave_the_report(project: Project) -> None:
    project.edit("config/experiments/tiny.yaml", "replicates: 2", "replicates: 1")
    project.snakemake("report")
    counted = subprocess.run([sys.executable, "-m", "apd_replay", "sql", "--format", "csv", "select count(*) as n from runs"],
                             cwd=project.folder, env=project.environment(), capture_output=True, text=True)  # fmt: skip
    assert counted.stdout.split()[-1:] == ["2"], counted.stderr


def test_a_job_planned_before_an_edit_refuses(project: Project) -> None:
    """Code or configuration edited between planning and start must not run under the planned name."""
    remove("results/runs/A@tiny/r1.json")(project)
    call = [sys.executable, "-m", "apd_replay", "replay", "A@tiny", "--replicate", "1", "--expect", "0123456789abcdef", "--config", "config/config.yaml",
            "--matrix", "tiny", "--trace", "results/traces/tiny.parquet", "--results", "results"]  # fmt: skip
    job = subprocess.run(call, cwd=project.folder, env=project.environment(), capture_output=True, text=True)
    assert job.returncode == 1 and len(job.stderr.splitlines()) == 1
    assert "changed since this job was planned" in job.stderr
    assert not (project.folder / "results/runs/A@tiny/r1.json").exists()


def test_moving_a_trace_replays_nothing(project: Project) -> None:
    before = project.stored()
    (project.folder / "moved").mkdir()
    Path(project.folder / "tiny.jsonl").rename(project.folder / "moved/tiny.jsonl")
    project.edit("config/config.yaml", "tiny.jsonl", "moved/tiny.jsonl")
    project.snakemake("report")
    assert project.stored() == before
