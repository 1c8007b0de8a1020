"""Verify the parts of a kit and unpack them. Standard library only: it runs on a host that has nothing but Python.

    python3 install.py PARTS... --to DIR        PARTS: the kit's files, or folders that hold them
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

MANIFEST = "kit.json"
FORMAT = 1
BLOCK = 1 << 20


class KitError(Exception):
    """A kit that cannot be installed; one line."""


class Parts(io.RawIOBase):
    """`length` bytes from `offset` of the parts read one after the other, as a file."""

    def __init__(self, files: Sequence[Path], offset: int, length: int) -> None:
        self._files, self._left = list(files), length
        self._handle: io.BufferedReader | None = None
        while self._files and offset >= (size := self._files[0].stat().st_size):
            offset -= size
            self._files.pop(0)
        if self._files:
            self._handle = self._files.pop(0).open("rb")
            self._handle.seek(offset)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        wanted = min(len(buffer), self._left)
        while wanted and self._handle is not None:
            got = self._handle.readinto(memoryview(buffer)[:wanted])
            if got:
                self._left -= got
                return got
            self._handle.close()
            self._handle = self._files.pop(0).open("rb") if self._files else None
        return 0

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()
        super().close()


def digest(stream: io.RawIOBase | io.BufferedReader) -> str:
    sha = hashlib.sha256()
    while block := stream.read(BLOCK):
        sha.update(block)
    return sha.hexdigest()


def find(places: Sequence[Path]) -> dict[str, Path]:
    """Every file of `places` (files, or folders looked into one level deep) by its name."""
    found: dict[str, Path] = {}
    for place in places:
        if not place.exists():
            raise KitError(f"{place}: no such file or folder")
        for file in sorted(place.iterdir()) if place.is_dir() else [place]:
            if file.is_file():
                found[file.name] = file
    return found


def verified(places: Sequence[Path]) -> tuple[dict, list[Path]]:
    """The manifest and the parts in order, all of them present and whole, or a KitError that names each that is not."""
    found = find(places)
    if MANIFEST not in found:
        raise KitError(f"{places[0]}: no {MANIFEST} among the parts; it is one of the files that `apd kit build` wrote")
    try:
        manifest = json.loads(found[MANIFEST].read_text())
        parts = [(p["name"], p["bytes"], p["sha256"]) for p in manifest["parts"]]
    except (ValueError, KeyError, TypeError):
        raise KitError(f"{found[MANIFEST]}: not a kit's manifest") from None
    if manifest.get("format") != FORMAT:
        raise KitError(f"{found[MANIFEST]}: format {manifest.get('format')}, this installer reads {FORMAT}; use the install.py beside it")
    wrong = []
    for name, size, sha256 in parts:
        if name not in found:
            wrong.append(f"{name} is missing")
        elif found[name].stat().st_size != size:
            wrong.append(f"{name} has {found[name].stat().st_size} bytes instead of {size}")
        else:
            with found[name].open("rb") as stream:
                if digest(stream) != sha256:
                    wrong.append(f"{name} has another checksum")
    if wrong:
        raise KitError(f"{found[MANIFEST].parent}: {'; '.join(wrong)}; copy them again")
    return manifest, [found[name] for name, _, _ in parts]


def unpack(files: Sequence[Path], offset: int, length: int, target: Path) -> None:
    """One archive of the kit. `xz` where the host has it: twice as fast as Python's."""
    with Parts(files, offset, length) as stream:
        if shutil.which("xz") and shutil.which("tar"):
            with subprocess.Popen(["tar", "xJf", "-", "-C", str(target)], stdin=subprocess.PIPE) as tar:
                assert tar.stdin is not None
                shutil.copyfileobj(stream, tar.stdin, BLOCK)
                tar.stdin.close()
            if tar.returncode:
                raise KitError(f"{target}: tar failed with {tar.returncode}")
        else:
            with tarfile.open(fileobj=io.BufferedReader(stream, BLOCK), mode="r|xz") as archive:
                archive.extractall(target, filter="tar")


def leave_out_libraries_that_are_here(folder: Path) -> list[str]:
    """Remove the carried system libraries that the host has itself: its own fit its other libraries. Returns those kept."""
    if not folder.is_dir():
        return []
    # /sbin is not on everybody's path. Where nobody can say what the host has, all stay.
    ldconfig = shutil.which("ldconfig", path=os.pathsep.join([os.environ.get("PATH", ""), "/sbin", "/usr/sbin"]))
    listing = subprocess.run([ldconfig, "-p"], capture_output=True, text=True).stdout if ldconfig else ""
    here = {line.split()[0] for line in listing.splitlines() if "=>" in line}
    for library in folder.iterdir():
        if library.name in here:
            library.unlink()
    return sorted(p.name for p in folder.iterdir())


def install(places: Sequence[Path], target: Path) -> dict:
    """Unpack a verified kit into `target`, which must be new or empty; returns the manifest. Nothing is unpacked if a part is bad."""
    manifest, files = verified(places)
    if target.exists() and any(target.iterdir()):
        raise KitError(f"{target}: not empty; name a new folder")
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    offset, jobs = 0, []
    with ProcessPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for archive in manifest["archives"]:
            jobs.append(pool.submit(unpack, files, offset, archive["bytes"], partial))
            offset += archive["bytes"]
        for job in jobs:
            job.result()
    kept = leave_out_libraries_that_are_here(partial / "syslibs")
    if target.exists():
        target.rmdir()
    os.replace(partial, target)
    print(f"kit {manifest['name']} in {target}; system libraries that the host lacked: {', '.join(kept) or 'none'}")
    missing = [name for name in manifest["expects"] if importlib.util.find_spec(name) is None and not (target / name).exists()]
    if missing:
        print(f"this Python ({sys.executable}) lacks what the kit expects of the host: {', '.join(missing)}")
    print(f"to use it: . {target}/env.sh")
    return manifest


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("parts", nargs="+", type=Path)
    arguments.add_argument("--to", required=True, type=Path)
    given = arguments.parse_args()
    try:
        install(given.parts, given.to)
    except KitError as error:
        print(f"install.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
