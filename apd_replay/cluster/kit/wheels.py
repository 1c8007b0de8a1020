"""Wheels for another machine: downloaded by pip for the host's Python and C library, laid out as an installation would."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from apd_replay.errors import RunError

OLDEST_GLIBC = 17


def download(pins: Mapping[str, str | None], python: str, newest_glibc: int, target: Path) -> None:
    """Fetch the wheel of each `{name: version}` without what it depends on: the recipe names everything."""
    target.mkdir(parents=True, exist_ok=True)
    tags = [f"manylinux_2_{n}_x86_64" for n in range(newest_glibc, OLDEST_GLIBC - 1, -1)] + ["manylinux2014_x86_64", "manylinux1_x86_64"]
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:",
        "--python-version", python, "--implementation", "cp", *(f"--platform={tag}" for tag in tags), "--dest", str(target),
        *(f"{name}=={version}" for name, version in pins.items()),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise RunError(f"pip download failed: {(errors or [done.stderr.strip()[-300:]])[-1]}")


def find(name: str, version: str, folder: Path) -> Path:
    stem = name.replace("-", "_").lower()
    for wheel in folder.glob("*.whl"):
        project, found, *_ = wheel.name.split("-")
        if project.lower() == stem and found == version:
            return wheel
    raise RunError(f"{folder}: no wheel of {name} {version}")


def lay_out(wheel: Path, site: Path, drop: Sequence[str] = (), keep: Sequence[str] = ()) -> None:
    """Extract `wheel` into `site` without what matches a glob of `drop` and none of `keep`; scripts go to site/bin."""
    with zipfile.ZipFile(wheel) as archive:
        for item in archive.infolist():
            name = item.filename
            if item.is_dir() or (_matches(name, drop) and not _matches(name, keep)):
                continue
            first, _, rest = name.partition("/")
            if first.endswith(".data"):
                kind, _, rest = rest.partition("/")
                if kind not in ("purelib", "platlib", "scripts"):
                    continue
                name = f"bin/{rest}" if kind == "scripts" else rest
            file = (site / name).resolve()
            if not file.is_relative_to(site.resolve()):
                raise RunError(f"{wheel.name}: {name} would lie outside the kit")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(archive.read(item))
            if mode := item.external_attr >> 16 & 0o777:
                file.chmod(mode | 0o600)


def _matches(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatch(name, glob) for glob in globs)
