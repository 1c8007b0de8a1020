"""workflow/gpu/calibrate.sh on stub servers: what it leaves, and that nothing of it stays behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
STUB = Path(__file__).with_name("stub_server.py")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")]


@pytest.fixture
def session(tmp_path: Path) -> dict[str, str]:
    """The environment of a host with one GPU and a kit that is installed already."""
    for model in ("q30a3", "q06"):
        shutil.copytree(ROOT / "apd_replay" / "cluster" / "kit" / "models" / model, tmp_path / "models" / model)
    (tmp_path / "bin").mkdir()
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.write_text('#!/bin/sh\ncase "$*" in *list-gpus*) echo "GPU 0";; *query*) echo "Pretend GPU, 1.0";; esac\n')
    smi.chmod(0o755)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "env.sh").write_text("true\n")
    (tmp_path / "home").mkdir()
    return {
        "PATH": f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path / "home"), "SITE": str(tmp_path / "site"),
        "OUT": str(tmp_path / "out"), "LOGS": str(tmp_path / "logs"), "MODELS": str(tmp_path / "models"), "LAUNCHER": f"{sys.executable} {STUB}", "BACKENDS": "nixl",
    }  # fmt: skip


def left_running(tmp_path: Path) -> list[str]:
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    return [line for line in listing.splitlines() if str(tmp_path) in line]


def test_a_session_leaves_measurements_fits_and_logs(session: dict[str, str], tmp_path: Path) -> None:
    run = subprocess.run(["bash", "workflow/gpu/calibrate.sh"], cwd=ROOT, env={**session, "SESSION_S": "240"}, capture_output=True, text=True, timeout=300)
    assert {"raw-q30a3.jsonl", "raw-q06.jsonl", "raw-links.jsonl", "hardware-q30a3.yaml", "hardware-q06.yaml", "logs.tar.gz", "session.log"} <= {p.name for p in (tmp_path / "out").iterdir()}, run.stdout
    assert yaml.safe_load((tmp_path / "out" / "hardware-q06.yaml").read_text())["gpu"] == "Pretend GPU"
    assert not left_running(tmp_path)


def test_a_session_that_is_ended_takes_its_servers_along_and_keeps_what_it_has(session: dict[str, str], tmp_path: Path) -> None:
    run = subprocess.Popen(["bash", "workflow/gpu/calibrate.sh"], cwd=ROOT, env=session, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    raw = tmp_path / "out" / "raw-q30a3.jsonl"
    until = time.monotonic() + 60
    while not (raw.exists() and raw.stat().st_size) and time.monotonic() < until:
        time.sleep(0.2)
    run.send_signal(signal.SIGTERM)
    run.wait(30)
    assert raw.stat().st_size and (tmp_path / "out" / "logs.tar.gz").exists()
    time.sleep(1)
    assert not left_running(tmp_path)
