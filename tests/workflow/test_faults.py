"""Whatever is killed, filled up or locked: what was complete stays, what was not is made anew, no half file is ever read."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from small_project import Project

from apd_replay.replay.store import CHECKSUMS


def checksums(project: Project) -> dict[str, str]:
    """What is stored, by content: runs of the same seed are the same bytes."""
    return {run: (project.folder / "results/store" / run / CHECKSUMS).read_text() for run in project.stored()}


def assert_nothing_is_half(project: Project) -> None:
    """Every sealed run matches its checksums, every Parquet can be read to its end."""
    import pyarrow.parquet as pq

    for run in project.stored():
        check = subprocess.run(["sha256sum", "--quiet", "-c", CHECKSUMS], cwd=project.folder / "results/store" / run, capture_output=True, text=True)
        assert check.returncode == 0, check.stdout
    for table in (project.folder / "results").glob("t*/**/*.parquet"):
        pq.read_table(table)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
def test_killed_at_random_moments_of_every_stage(finished: Project, fresh: Project, seed: int) -> None:
    """Six kills of the workflow with all its jobs, one in each stage; each leaves what was whole, and the next call makes the rest."""
    shutil.copy2(Path(__file__).with_name("killer.py"), fresh.folder / "sitecustomize.py")
    dice = random.Random(seed)
    kills = 0
    for stage in ("trace", "replay", "parse", "warehouse", "claims", "report"):
        environment = {**fresh.environment(), "APD_TEST_KILL": f"{stage} {dice.randrange(1, 20)}"}
        done = subprocess.run(fresh.command("report"), cwd=fresh.folder, env=environment, capture_output=True, text=True, start_new_session=True)
        assert done.returncode == -signal.SIGKILL, f"{stage}: {done.stderr}"
        kills += 1
        assert_nothing_is_half(fresh)
        fresh.snakemake("--unlock")
    assert kills == 6
    fresh.snakemake("report")
    assert_nothing_is_half(fresh)
    assert checksums(fresh) == checksums(finished)
    assert fresh.stale() == {}
    verdicts = "results/claims/verdicts.csv"
    assert (fresh.folder / verdicts).read_text() == (finished.folder / verdicts).read_text()


def test_a_killed_replay_leaves_its_logs_and_no_run(project: Project) -> None:
    """The job itself dies, not the workflow: its neighbours end, the next call makes up for it."""
    before = checksums(project)
    shutil.rmtree(project.folder / "results/runs/A@tiny")
    victim = next(iter(p.parent for p in (project.folder / "results/store").glob("*/run.json") if '"A@tiny"' in p.read_text()))
    shutil.rmtree(victim)
    project.edit("apd_replay/replay/records.py", "    def finish(self", "    def finish(self, *_: object) -> None:\n        import os, signal\n        os.kill(os.getpid(), signal.SIGKILL)\n\n    def finish_(self")
    failed = project.snakemake("report", check=False)
    assert failed.returncode == 1
    assert not victim.exists()
    project.edit("apd_replay/replay/records.py", "    def finish(self, *_: object) -> None:\n        import os, signal\n        os.kill(os.getpid(), signal.SIGKILL)\n\n    def finish_(self", "    def finish(self")
    project.snakemake("report")
    aside = [p for p in (project.folder / "results/store").glob(f".{victim.name}.failed-*") if p.is_dir()]
    assert len(aside) == 1 and (aside[0] / "requests.jsonl").is_file()
    assert checksums(project) == before


def test_two_workflows_at_once_one_is_refused(fresh: Project) -> None:
    with subprocess.Popen(fresh.command("report"), cwd=fresh.folder, env=fresh.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as first:
        assert first.stderr is not None
        for line in first.stderr:  # jobs are being run: the lock is taken
            if line.startswith("Execute "):
                break
        second = fresh.snakemake("report", check=False)
        first.stderr.read()
    assert first.returncode == 0
    assert second.returncode == 1 and "locked" in second.stderr.lower()
    assert fresh.stale() == {}


def test_two_workflows_without_a_lock_make_each_run_once(finished: Project, fresh: Project) -> None:
    """A run takes a second longer here, so that both want to make it at the same time."""
    fresh.edit("apd_replay/replay/store.py", "        filling.mkdir()\n", "        filling.mkdir()\n        time.sleep(1)\n")
    both = [subprocess.Popen(fresh.command("--nolock", "--until", "replay"), cwd=fresh.folder, env=fresh.environment(), stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL) for _ in range(2)]  # fmt: skip
    for workflow in both:
        workflow.wait(timeout=120)
    assert_nothing_is_half(fresh)
    assert not list((fresh.folder / "results/store").glob("*failed*"))
    fresh.snakemake("report")
    assert checksums(fresh) == checksums(finished)


def test_a_wrong_key_is_said_before_any_job(project: Project) -> None:
    project.edit("config/experiments/tiny.yaml", "concurrency: 2", "concurency: 2")
    refused = project.snakemake("report", check=False)
    said = [line for line in refused.stderr.splitlines() if not line.startswith("Using workflow specific profile")]
    assert refused.returncode == 1 and len(said) == 1
    assert said[0].startswith("apd: config/experiments/tiny.yaml: experiments.A.concurency: unknown key; allowed: ")


@pytest.mark.parametrize(
    ("override", "answer"),
    [
        ("replicates=0", "apd: config/config.yaml: replicates: 0 is less than the minimum of 1"),
        ("trace=nowhere.jsonl", "apd: config/config.yaml: trace: there is no file nowhere.jsonl, nor a built-in trace of that name; built in: swebench-52, tiny-8"),
        ("matrix=none", "apd: config/experiments/none.yaml: (file): cannot be read: No such file or directory"),
    ],
)
def test_a_wrong_override_too(project: Project, override: str, answer: str) -> None:
    refused = project.snakemake("report", "--config", override, check=False)
    assert refused.returncode == 1 and refused.stderr.splitlines()[-1] == answer


def job(project: Project, arguments: list[str], limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """`apd ...` by hand. `limit`: no file may grow beyond so many bytes, the nearest thing to a full disk that needs no root."""

    def restrict() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.run([sys.executable, "-m", "apd_replay", *arguments], cwd=project.folder, env=project.environment(), capture_output=True, text=True,
                          preexec_fn=restrict)  # fmt: skip


WRITERS = {
    "trace": ["trace", "convert", "tiny.jsonl", "results/traces/tiny.parquet"],
    "replay": ["replay", "A@tiny", "--replicate", "1", "--results", "results", "--trace", "results/traces/tiny.parquet"],
    "manifest of a stored run": ["replay", "A@tiny", "--replicate", "1", "--results", "results", "--trace", "results/traces/tiny.parquet"],
    "parse": ["parse", "--run", "results/runs/A@tiny/r2.json", "--out", "results/tables", "--experiment", "A@tiny", "--replicate", "2"],
    "parse, logs alone": ["parse", "results/store", "--out", "results/tables", "--experiment", "A@tiny", "--replicate", "2"],
    "warehouse": ["warehouse", "--results", "results"],
    "claims": ["claims", "--results", "results"],
    "report": ["report", "--results", "results"],
}


@pytest.mark.parametrize("stage", WRITERS)
def test_a_full_disk_is_one_line_and_leaves_what_was_there(project: Project, stage: str) -> None:
    results = project.folder / "results"
    if stage == "replay":
        for run in project.stored():
            shutil.rmtree(results / "store" / run)
    before = {p: p.read_bytes() for p in results.rglob("*") if p.is_file() and ".failed-" not in str(p) and "/figures/" not in str(p)}
    full = job(project, WRITERS[stage], limit=200)
    assert_refused(full, "File too large")
    after = {p: p.read_bytes() for p in results.rglob("*") if p.is_file() and "/." not in str(p) and "/figures/" not in str(p)}
    assert after == {p: content for p, content in before.items() if "/." not in str(p)}
    again = job(project, WRITERS[stage])
    assert again.returncode == 0, again.stderr


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """`folder` with what is in it on a file system of its own; the folder itself lies where this says."""
    aside = folder.rename(folder.with_name("aside"))
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        shutil.copytree(aside, folder, symlinks=True, dirs_exist_ok=True)
        yield aside
    finally:
        subprocess.run(["umount", folder], check=True)


def fill(file: Path) -> None:
    """Until nothing more fits."""
    with suppress(OSError), open(file, "wb", buffering=0) as out:
        while out.write(b"\0" * 4096):
            pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_disk_that_is_really_full(project: Project) -> None:
    """Eight writers, one after the other: each says it in one line and leaves what was there; with room again each goes through."""
    results = project.folder / "results"
    with small_disk(results, 40) as aside:
        for run in project.stored():
            shutil.rmtree(results / "store" / run)  # or the replay would find it
        filler = results / "filler"
        for stages in (("trace", "replay"), ("manifest of a stored run", "parse", "parse, logs alone", "warehouse", "claims", "report")):
            before = {p: p.read_bytes() for p in results.rglob("*") if p.is_file() and "/." not in str(p) and "/figures/" not in str(p)}
            fill(filler)
            for stage in stages:
                assert_refused(job(project, WRITERS[stage]), "No space left on device")
                assert {p: p.read_bytes() for p in before} == before
            filler.unlink()
            shutil.copytree(aside / "store", results / "store", dirs_exist_ok=True)
        for stage in sorted(WRITERS, key="parse, logs alone".__ne__):  # whose tables the next one replaces
            assert job(project, WRITERS[stage]).returncode == 0
        assert_nothing_is_half(project)


def assert_refused(done: subprocess.CompletedProcess[str], why: str) -> None:
    assert done.returncode == 1, done.stderr
    *notes, last = done.stderr.splitlines()
    assert last.startswith("apd: ") and why in last, done.stderr
    assert not any(note.startswith(("Traceback", "apd: ")) for note in notes)


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("unshare"), reason="root ignores permissions, and there is no unshare for a read-only mount")
@pytest.mark.parametrize("stage", ["replay", "parse", "warehouse"])
def test_read_only_results_are_one_line(project: Project, stage: str) -> None:
    results = project.folder / "results"
    if stage == "replay":
        for run in project.stored():
            shutil.rmtree(results / "store" / run)
    call = [sys.executable, "-m", "apd_replay", *WRITERS[stage]]
    if os.geteuid() == 0:
        script = 'mount --bind results results && mount -o remount,ro,bind results && exec "$@"'
        call = ["unshare", "--mount", "sh", "-c", script, "sh", *call]
    else:
        for place in [results, *results.rglob("*")]:
            place.chmod(0o555 if place.is_dir() else 0o444)
    refused = subprocess.run(call, cwd=project.folder, env=project.environment(), capture_output=True, text=True)
    for place in [results, *results.rglob("*")]:
        place.chmod(0o755 if place.is_dir() else 0o644)
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert "Read-only file system" in refused.stderr or "Permission denied" in refused.stderr


def test_a_manifest_whose_run_is_gone_says_what_to_do(project: Project) -> None:
    run = job(project, ["sql", "--format", "csv", "select run_id from runs where experiment = 'A@tiny' and replicate = 1"]).stdout.split()[-1].strip('"')
    shutil.rmtree(project.folder / "results/store" / run)
    said = job(project, ["parse", "--run", "results/runs/A@tiny/r1.json", "--out", "results/tables", "--experiment", "A@tiny", "--replicate", "1"])
    assert said.returncode == 1 and "delete the manifest to make the run again" in said.stderr
    Path(project.folder / "results/runs/A@tiny/r1.json").unlink()
    project.snakemake("report")
    assert_nothing_is_half(project)
