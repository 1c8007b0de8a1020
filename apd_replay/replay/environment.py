"""Where SGLang is installed: the Python that runs its servers, and the versions found there."""

from __future__ import annotations

import json
import os
import subprocess
from functools import lru_cache
from pathlib import Path

from apd_replay.errors import RunError

VARIABLE = "APD_SGLANG_PYTHON"
DEFAULT = Path(".sglang/venv/bin/python")
SET_UP = "workflow/scripts/sglang_cpu_env.sh"  # docs/sglang.md
PACKAGES = ("sglang", "sglang-router", "torch", "transformers", "mooncake-transfer-engine", "mooncake-transfer-engine-non-cuda",
            "mooncake-transfer-engine-cuda13", "nixl", "nixl-cu12", "nixl-cu13", "sglang-kernel", "sgl-kernel", "apd-replay")  # fmt: skip

# What was run, with what it was run on, and what that showed. docs/sglang.md prints this table.
TRIED: tuple[tuple[str, str, str, str, str], ...] = (
    # SGLang, torch, router, device, what ran
    ("0.5.21", "2.13.0", "0.3.2", "CPU", "unified, 2xDP behind the router, 1P2D over mooncake_tcp: in CI"),
    ("0.5.15.post1", "2.13.0", "0.3.2", "CPU", "the plugin's cases, 1P3D over mooncake_tcp and a unified worker: by hand"),
    ("0.5.15.post1", "2.11.0", "0.3.2", "H200", "unified, router, P/D over nixl, mooncake_tcp and mooncake: by hand, before this driver existed"),
)


def python() -> str:
    """The interpreter that has SGLang: $APD_SGLANG_PYTHON, else .sglang/venv here, else the one in this environment. Raises RunError."""
    named = os.environ.get(VARIABLE)
    if named:
        if not Path(named).is_file():
            raise RunError(f"{VARIABLE} names {named}, and there is no such file")
        return named
    if DEFAULT.is_file():
        return str(DEFAULT.absolute())  # not resolved: the link is what makes it a virtual environment
    import sys
    from importlib.util import find_spec

    if find_spec("sglang") is not None:
        return sys.executable
    raise RunError(f"no SGLang here; run {SET_UP} (a machine without a GPU), or set {VARIABLE} to the Python that has it")


@lru_cache
def versions(interpreter: str) -> dict[str, str]:
    """The versions of PACKAGES that the interpreter sees; nothing is imported, so it takes no time."""
    code = (
        "import importlib.metadata as m, json, platform\n"
        f"found = {{'python': platform.python_version()}}\nfor p in {PACKAGES!r}:\n"
        "    try: found[p] = m.version(p)\n    except m.PackageNotFoundError: pass\nprint(json.dumps(found))"
    )
    try:
        answer = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        found: dict[str, str] = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise RunError(f"{interpreter} cannot be asked for its packages: {error}") from None
    if driver := gpu_driver():
        found["gpu_driver"] = driver
    return found


def gpu_driver() -> str | None:
    try:
        answer = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.split("\n")[0].strip() or None if answer.returncode == 0 else None


def warning(found: dict[str, str]) -> str | None:
    """One sentence where this SGLang was never tried."""
    mine = found.get("sglang")
    if mine is None or any(mine == row[0] for row in TRIED):
        return None
    return f"SGLang {mine} was never run with this package (tried: {', '.join(row[0] for row in TRIED)}); see docs/sglang.md"
