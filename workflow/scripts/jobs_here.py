"""The least scheduler there is: Snakemake's cluster-generic jobs as detached processes of this machine (profiles/generic).

    jobs_here.py submit MINUTES JOBSCRIPT    start it, print its id
    jobs_here.py status ID                   print running, success or failed
    jobs_here.py cancel ID...                stop them, children too

A job outlives Snakemake and its terminal. Its keeper holds a lock as long as it lives, so that a dead one is never taken for a
running one, whoever has its process id now; it writes the exit status by rename. All lies in logs/cluster/.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from types import FrameType

FOLDER = Path("logs/cluster")
KILL_AFTER_S = 30


def submit(minutes: str, script: str) -> str:
    FOLDER.mkdir(parents=True, exist_ok=True)
    job = uuid.uuid4().hex[:12]
    shutil.copy(script, FOLDER / f"{job}.sh")  # Snakemake removes its own
    lock = os.open(FOLDER / f"{job}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)  # the keeper inherits it: there is no moment without
    keeper = [sys.executable, __file__, "keep", job, minutes]
    process = subprocess.Popen(keeper, start_new_session=True, pass_fds=[lock], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _write(job, "pid", process.pid)
    return job


def keep(job: str, minutes: str) -> None:
    """Run the job in a session of its own until it ends, is cancelled or has had its time."""
    with open(FOLDER / f"{job}.log", "wb") as log:
        process = subprocess.Popen(["bash", FOLDER / f"{job}.sh"], start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def stop(signum: int, frame: FrameType | None) -> None:
            os.killpg(process.pid, signal.SIGTERM)

        signal.signal(signal.SIGTERM, stop)
        try:
            process.wait(60 * float(minutes))
        except subprocess.TimeoutExpired:
            log.write(f"apd: stopped after its {minutes} minutes\n".encode())
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(KILL_AFTER_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    _write(job, "rc", process.returncode)


def status(job: str) -> str:
    alive = _alive(job)  # before the exit status is looked for: a job that ends in between has written it
    code = FOLDER / f"{job}.rc"
    if code.is_file():
        return "success" if code.read_text() == "0" else "failed"
    return "running" if alive else "failed"


def cancel(job: str) -> None:
    if _alive(job):
        os.kill(int((FOLDER / f"{job}.pid").read_text()), signal.SIGTERM)


def _alive(job: str) -> bool:
    try:
        lock = os.open(FOLDER / f"{job}.lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(lock)


def _write(job: str, kind: str, value: int) -> None:
    part = FOLDER / f"{job}.{kind}.part"
    part.write_text(str(value))
    part.replace(FOLDER / f"{job}.{kind}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["submit", minutes, script]:
            print(submit(minutes, script))
        case ["status", job]:
            print(status(job))
        case ["cancel", *jobs]:
            for job in jobs:
                cancel(job)
        case ["keep", job, minutes]:
            keep(job, minutes)
        case _:
            sys.exit(__doc__)
