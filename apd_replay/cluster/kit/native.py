"""Shared objects of the kit: smaller where that costs nothing, and with the system libraries they need."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

# Every Linux host has these, and they must match its kernel and compiler rather than ours.
BASE_LIBRARIES = ("linux-vdso", "ld-linux", "libc.", "libm.", "libdl.", "librt.", "libpthread.", "libresolv.", "libgcc_s.", "libstdc++.")


def strip(file: Path) -> None:
    subprocess.run(["strip", "--strip-unneeded", str(file)], check=True)


def needed(file: Path) -> list[str]:
    """Names of the libraries that `file` links to."""
    listing = subprocess.run(["readelf", "-d", str(file)], capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.+)\]", listing)


def drop_unneeded(folder: Path, site: Path, spared: str) -> None:
    """Remove libraries that lie directly in `folder` and that no other shared object of `site` links to, however indirectly.

    A name that starts with `spared` stays: its family loads its members by name.
    """
    libraries = {p.name: p for p in folder.glob("*.so*")}
    roots = [p for p in site.rglob("*.so*") if p.parent != folder] + [p for name, p in libraries.items() if name.startswith(spared)]
    used: set[str] = set()
    while roots:
        for name in needed(roots.pop()):
            if name in libraries and name not in used:
                used.add(name)
                roots.append(libraries[name])
    for name, path in libraries.items():
        if name not in used and not name.startswith(spared):
            path.unlink()


def system_libraries(objects: Iterable[Path], target: Path) -> list[str]:
    """Copy what `objects` take from the system to `target`; returns what this system itself lacks.

    Which of them the host has is seen only there: install.py removes those.
    """
    target.mkdir(parents=True, exist_ok=True)
    lacking = set()
    for file in objects:
        listing = subprocess.run(["ldd", str(file)], capture_output=True, text=True).stdout
        for name, path in re.findall(r"^\s*(\S+) => (not found|/\S+)", listing, re.MULTILINE):
            if path == "not found":
                lacking.add(name)
            elif path.startswith(("/lib", "/usr/lib")) and not name.startswith(BASE_LIBRARIES):
                shutil.copyfile(path, target / name)
    return sorted(lacking)
