"""Run a command on N GPUs of this machine that nobody else has leased: `python gpu_lease.py N -- COMMAND...`.

Snakemake counts GPUs but hands out none, so two replicates that it starts at once would meet on GPU 0. Each GPU has a lock file;
the command waits until N are free, takes them all or none, and sees them as CUDA_VISIBLE_DEVICES. The kernel gives the locks
back when the command ends, however it ends. Where a scheduler has handed out GPUs already, they are the ones that are leased.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RETRY_S = 1.0


def visible() -> list[str]:
    """The GPUs that this process may use, as CUDA names them."""
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    if told is not None:
        return [gpu.strip() for gpu in told.split(",") if gpu.strip()]
    try:
        answer = subprocess.run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True)
    except OSError:
        return []
    return answer.stdout.split() if answer.returncode == 0 else []


def lease(gpus: list[str], count: int, folder: Path) -> list[str] | None:
    """`count` of `gpus`, locked until this process and those it becomes end; None where too few are free, and nothing is locked then."""
    folder.mkdir(parents=True, exist_ok=True)
    taken: dict[str, int] = {}
    for gpu in gpus:
        lock = os.open(folder / f"{gpu.replace('/', '_')}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        os.set_inheritable(lock, True)
        taken[gpu] = lock
        if len(taken) == count:
            return list(taken)
    for lock in taken.values():
        os.close(lock)
    return None


def main(arguments: list[str]) -> None:
    count, command = int(arguments[0]), arguments[2:]
    gpus = visible()
    if len(gpus) < count:
        sys.exit(f"apd: this run needs {count} GPUs, and this machine (or job) has {len(gpus)}; another config/clusters/*.yaml asks for fewer")
    folder = Path(tempfile.gettempdir()) / f"apd-gpus-{os.getuid()}"
    while (leased := lease(gpus, count, folder)) is None:
        time.sleep(RETRY_S)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(leased)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
