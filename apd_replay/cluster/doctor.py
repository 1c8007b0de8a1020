"""What can this machine run? Each finding says what was looked at, what was found, and what to do about it."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from apd_replay.cluster.ports import free_ports
from apd_replay.errors import RunError
from apd_replay.replay import environment

FILES_NEEDED = 4096  # a connection or two for each request in flight, and SGLang's own
SHARED_MEMORY_NEEDED = 1 << 30  # SGLang's processes pass batches and load snapshots through it


@dataclass(frozen=True)
class Finding:
    """`verdict`: `ok`, `missing` (that part cannot be run here), `doubt` or `broken` (nothing real can be run until it is mended)."""

    subject: str
    verdict: str
    found: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Looks only; starts nothing but the SGLang environment's Python. Takes seconds."""
    return [Finding("simulator", "ok", "runs anywhere"), *_gpus(), *_sglang(), _compiler(), _ports(), _shared_memory(), _files()]


def _gpus() -> Iterator[Finding]:
    try:
        answer = subprocess.run(["nvidia-smi", "--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader"],
                                capture_output=True, text=True, timeout=20)  # fmt: skip
        gpus = [line.strip() for line in answer.stdout.splitlines() if line.strip()] if answer.returncode == 0 else []
    except (OSError, subprocess.SubprocessError):
        gpus = []
    if gpus:
        yield Finding("GPUs", "ok", f"{len(gpus)}: {'; '.join(gpus)}")
    else:
        yield Finding("GPUs", "missing", "none (no working nvidia-smi)", "use a cluster with device: cpu, such as cpu-1p2d; figures then say nothing about GPUs")


def _sglang() -> Iterator[Finding]:
    try:
        interpreter = environment.python()
        found = environment.versions(interpreter)
    except RunError as error:
        yield Finding("SGLang", "missing", str(error), f"without a GPU: {environment.SET_UP}")
        return
    if "sglang" not in found:
        yield Finding("SGLang", "broken", f"{interpreter} has none", f"set {environment.VARIABLE} to the Python that has it")
        return
    doubt = environment.warning(found)
    yield Finding("SGLang", "doubt" if doubt else "ok", f"{found['sglang']} with torch {found.get('torch', '?')}, {interpreter}", doubt or "")
    if "sglang-router" in found:
        yield Finding("router", "ok", found["sglang-router"])
    else:
        yield Finding("router", "missing", "no sglang-router: policy cache_aware cannot run", f"{interpreter} -m pip install sglang-router==0.3.2")
    yield from _transfer(interpreter, found)
    if "apd-replay" in found:
        yield Finding("SGLang plugin", "ok", f"apd-replay {found['apd-replay']} is installed beside SGLang")
    else:
        yield Finding("SGLang plugin", "missing", "apd-replay is not installed beside SGLang: resident sessions cannot run",
                      f"{interpreter} -m pip install --no-deps -e .")  # fmt: skip


def _transfer(interpreter: str, found: dict[str, str]) -> Iterator[Finding]:
    for subject, package, module, libraries in (("KV over mooncake", "mooncake-transfer-engine", "mooncake.engine", "libibverbs1"), ("KV over nixl", "nixl", "nixl._api", "")):
        have = next((f"{name} {version}" for name, version in found.items() if name.startswith(package)), None)
        if have is None:
            yield Finding(subject, "missing", f"no {package}", f"{interpreter} -m pip install {package}, or another transfer_backend")
            continue
        tried = subprocess.run([interpreter, "-c", f"import {module}"], capture_output=True, text=True)
        if tried.returncode == 0:
            yield Finding(subject, "ok", have)
        else:
            said = (tried.stderr.strip().splitlines() or ["?"])[-1]
            yield Finding(subject, "broken", f"{have} does not load: {said}", f"sudo apt-get install {libraries}" if libraries else f"reinstall {package}")


def _compiler() -> Finding:
    if shutil.which("cc"):
        return Finding("loopback", "ok", "a C compiler is there: servers can be kept off the network's interfaces")
    return Finding("loopback", "doubt", "no C compiler: torch's and Mooncake's own ports will listen on every interface", "install gcc, or shut those ports off with a firewall")


def _ports() -> Finding:
    try:
        free_ports(64)
    except OSError as error:
        return Finding("ports", "broken", f"64 free ports cannot be had: {error.strerror}", "look at net.ipv4.ip_local_port_range")
    return Finding("ports", "ok", "the kernel gives free ports on 127.0.0.1")


def _shared_memory() -> Finding:
    place = Path("/dev/shm")
    if not place.is_dir() or not os.access(place, os.W_OK):
        return Finding("shared memory", "broken", "/dev/shm is not there or not writable", "in a container: --shm-size 8g")
    free = shutil.disk_usage(place).free
    if free < SHARED_MEMORY_NEEDED:
        return Finding("shared memory", "doubt", f"{free >> 20} MiB free in /dev/shm", "in a container: --shm-size 8g")
    return Finding("shared memory", "ok", f"{free >> 20} MiB free in /dev/shm")


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < FILES_NEEDED:
        return Finding("open files", "doubt", f"at most {soft} a process", f"ulimit -n {hard if hard > 0 else 65536}")
    return Finding("open files", "ok", f"at most {'any number' if soft < 0 else soft} a process")
