"""Replays as jobs of a cluster: through cluster-generic, through a real SLURM of one node, and what each job asks for."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_project import ROOT, Project

SCRIPTS = ROOT / "workflow/scripts"
ONE_NODE = ROOT / "workflow/slurm/one_node.sh"

SERVERS = """\
defaults: {engine: sglang, time_scale: 1, replicates: 4}
experiments:
  L: {cluster: four, policy: kv_aware}
"""
STAND_IN = """\
    if experiment["engine"] == "sglang":  # a stand-in: how long it had which GPUs
        import os, time
        begin = time.time()
        time.sleep(3)
        with open("gpus.txt", "a") as out:
            out.write(f"{os.environ['CUDA_VISIBLE_DEVICES']} {begin} {time.time()}\\n")
    if experiment["engine"] in ("sim", "sglang"):
"""


def with_gpus(project: Project) -> Project:
    """Four replicates on four GPUs each; what runs there is the simulator, for three seconds."""
    (project.folder / "config/clusters/four.yaml").write_text("prefill: 1\ndecode: 3\n")
    (project.folder / "config/experiments/tiny.yaml").write_text(SERVERS)
    project.edit("apd_replay/engines.py", '    if experiment["engine"] == "sim":\n', STAND_IN)
    return project


def assert_never_shared(project: Project) -> None:
    """All four ran, two of them at once, and no GPU served two runs at the same time."""
    rows = [line.split() for line in (project.folder / "gpus.txt").read_text().splitlines()]
    runs = [(set(gpus.split(",")), float(begin), float(end)) for gpus, begin, end in rows]
    assert len(runs) == 4 and all(len(gpus) == 4 for gpus, _, _ in runs)
    together = [(a[0], b[0]) for i, a in enumerate(runs) for b in runs[i + 1 :] if a[1] < b[2] and b[1] < a[2]]
    assert together and all(not a & b for a, b in together)


def sums(project: Project) -> dict[str, str]:
    return {run: (project.folder / "results/store" / run / "SHA256SUMS").read_text() for run in project.stored()}


def test_the_generic_profile_gives_the_same_runs(finished: Project, fresh: Project) -> None:
    fresh.snakemake("report", "--workflow-profile", "profiles/generic", "--jobs", "3")
    assert sums(fresh) == sums(finished)
    assert len(list((fresh.folder / "logs/cluster").glob("*.rc"))) == 4, "each replay is a job, and nothing else is"
    assert fresh.stale() == {}


@pytest.mark.parametrize("profile", ["profiles/default", "profiles/generic"])
def test_replicates_never_share_gpus(fresh: Project, profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(f"{profile[-7:]}-{os.getpid()}-{k}" for k in range(8)))  # eight of our own names
    with_gpus(fresh).snakemake("report", "--workflow-profile", profile, "--jobs", "4", "--cores", "4", "--until", "replay")
    assert_never_shared(fresh)


def test_too_few_gpus_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    refused = subprocess.run([sys.executable, SCRIPTS / "gpu_lease.py", "8", "--", "true"], capture_output=True, text=True)
    assert refused.returncode == 1 and refused.stderr.startswith("apd: this run needs 8 GPUs, and this machine (or job) has 2; ")


def test_a_dry_run_says_how_long_each_replay_takes(fresh: Project) -> None:
    """The trace's longest session has three gaps of 5 s and starts 2 s late; start_spread_s is 30 by default."""
    with_gpus(fresh)
    out = fresh.snakemake("--dry-run")
    lines = re.findall(r"^(L@sglang-tiny/r\d): takes at least (\d+) s \(trace tiny, gaps / 1\), its job may run (\d+) min, 4 GPUs$", out.stderr, re.MULTILINE)
    assert sorted(name for name, _, _ in lines) == [f"L@sglang-tiny/r{n}" for n in (1, 2, 3, 4)]
    assert all(15 <= int(s) <= 47 for _, s, _ in lines)
    fresh.edit("config/experiments/tiny.yaml", "time_scale: 1", "time_scale: 1, time_limit_s: 12, request_timeout_s: 60")
    cut = re.findall(r"takes at least (\d+) s .* its job may run (\d+) min", fresh.snakemake("--dry-run").stderr)
    assert cut == [("12", "22")] * 4  # 12 s, 60 s for the last answers, 20 min for the servers to come up


@pytest.mark.parametrize(("dry", "minutes"), [(["--dry-run"], "1"), ([], "1"), (["--dry-run"], "1 * attempt")])
def test_what_cannot_end_in_time_is_refused_before_anything_runs(fresh: Project, dry: list[str], minutes: str) -> None:
    with_gpus(fresh).edit("config/experiments/tiny.yaml", "time_scale: 1", "time_scale: 0.1")
    refused = fresh.snakemake(*dry, "--set-resources", f"replay:runtime={minutes}", check=False)
    said = [line for line in refused.stderr.splitlines() if line.startswith("apd: ")]
    assert refused.returncode == 1 and len(said) == 1
    assert re.search(r"experiments\.L@sglang-tiny: L@sglang-tiny/r\d: takes at least \d min .* its job may run 60 s; cut it \(time_limit_s", said[0])
    assert not (fresh.folder / "results").exists()
    assert fresh.snakemake("--dry-run").returncode == 0, "nothing is left locked, and without a limit from outside it may run"


def test_a_simulated_run_asks_for_no_gpu_and_is_no_matter_of_time(fresh: Project) -> None:
    out = fresh.snakemake("--dry-run", "--quiet", "host", "--set-resources", "replay:runtime=1")
    assert "takes at least" not in out.stderr
    assert "gpu=0" in out.stdout + out.stderr


# the scheduler of profiles/generic -----------------------------------------------------------------------------------


def here(folder: Path, *arguments: str) -> str:
    return subprocess.run([sys.executable, SCRIPTS / "jobs_here.py", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def wait_for(folder: Path, job: str, wanted: str) -> None:
    for _ in range(200):
        if (found := here(folder, "status", job)) == wanted:
            return
        time.sleep(0.05)
    raise AssertionError(f"{found}, not {wanted}")


def script(folder: Path, text: str) -> str:
    (folder / "job.sh").write_text(text)
    return "job.sh"


def test_a_job_ends_well_or_badly(tmp_path: Path) -> None:
    wait_for(tmp_path, here(tmp_path, "submit", "1", script(tmp_path, "echo done")), "success")
    wait_for(tmp_path, here(tmp_path, "submit", "1", script(tmp_path, "exit 3")), "failed")
    assert here(tmp_path, "status", "no-such-job") == "failed"


def test_a_job_is_stopped_with_its_children(tmp_path: Path) -> None:
    for stop in ("time", "cancel"):
        job = here(tmp_path, "submit", "0.005" if stop == "time" else "1", script(tmp_path, "sleep 60 & echo $! > child; wait"))
        if stop == "cancel":
            wait_for(tmp_path, job, "running")
            while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text().strip():
                time.sleep(0.02)
            here(tmp_path, "cancel", job)
        wait_for(tmp_path, job, "failed")
        child = int((tmp_path / "child").read_text())
        assert not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]
        (tmp_path / "child").unlink()


def test_a_job_whose_keeper_is_killed_has_failed(tmp_path: Path) -> None:
    job = here(tmp_path, "submit", "1", script(tmp_path, "echo $$ > own; exec sleep 60"))
    wait_for(tmp_path, job, "running")
    while not (tmp_path / "own").exists() or not (tmp_path / "own").read_text().strip():
        time.sleep(0.02)
    os.kill(int((tmp_path / f"logs/cluster/{job}.pid").read_text()), signal.SIGKILL)
    wait_for(tmp_path, job, "failed")
    os.kill(int((tmp_path / "own").read_text()), signal.SIGKILL)


# a real SLURM --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slurm() -> Iterator[None]:
    """One node with eight CPUs and eight stand-ins for GPUs, for this module only."""
    if os.geteuid() or not shutil.which("slurmctld") or not shutil.which("munged"):
        pytest.skip("needs root, slurm-wlm and munge")
    subprocess.run([ONE_NODE, "up"], check=True, capture_output=True)
    yield
    subprocess.run([ONE_NODE, "down"], check=True, capture_output=True)


SLURM = ("report", "--workflow-profile", "profiles/slurm", "--latency-wait", "5", "--slurm-init-seconds-before-status-checks", "1")


@pytest.mark.slurm
def test_the_small_matrix_goes_through_sbatch(slurm: None, finished: Project, fresh: Project) -> None:
    fresh.snakemake(*SLURM)
    assert sums(fresh) == sums(finished)
    assert len(list((fresh.folder / "logs/slurm").rglob("*.log"))) == 4, "each replay is a job, and nothing else is"
    assert fresh.stale() == {}


@pytest.mark.slurm
def test_slurm_gives_each_replicate_gpus_of_its_own(slurm: None, fresh: Project) -> None:
    with_gpus(fresh).snakemake(*SLURM, "--until", "replay")
    assert_never_shared(fresh)


@pytest.mark.slurm
def test_the_node_listens_on_this_machine_only(slurm: None) -> None:
    listening = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout.splitlines()
    own = [line.split()[3] for line in listening if "slurm" in line or "munged" in line]
    assert own and all(address.startswith("127.0.0.1:") for address in own)
