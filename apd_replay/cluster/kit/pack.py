"""A folder becomes parts: archives by group, laid end to end and cut at the size that a transfer allows.

The archives are independent, so that the other side unpacks them in parallel; the cuts fall anywhere, so that the parts
are as few as the size allows. kit.json names both, with sizes and checksums; install.py reads it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from apd_replay.cluster.kit import install
from apd_replay.errors import RunError


def archive(folder: Path, members: Sequence[str], target: Path) -> None:
    """`members` of `folder` as a tar.xz; files are sorted, so that like lies beside like. Owners and times are left out."""
    listing = sorted(_files(folder, members), key=lambda name: (Path(name).suffix, name))
    command = "tar --sparse --owner=0 --group=0 --numeric-owner --mtime=@0 --no-recursion -cf - -T - | xz -T1 -6 > \"$0\""
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command, str(target.absolute())], cwd=folder, input="\n".join(listing) + "\n", text=True, stderr=subprocess.PIPE)
    if done.returncode:
        raise RunError(f"{target}: cannot be packed: {done.stderr.strip()[-300:]}; tar and xz are needed")


def _files(folder: Path, members: Iterable[str]) -> Iterable[str]:
    for member in members:
        path = folder / member
        if path.is_dir() and not path.is_symlink():
            yield from (str(p.relative_to(folder)) for p in path.rglob("*") if not p.is_dir() or p.is_symlink())
        else:
            yield member


def cut(archives: Sequence[Path], part_bytes: int, target: Path, facts: dict[str, Any]) -> list[Path]:
    """Write part-00 ..., kit.json and install.py to `target`; `facts` become keys of the manifest. Returns all files written."""
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("part-*"):
        old.unlink()
    total = sum(a.stat().st_size for a in archives)
    with install.Parts(archives, 0, total) as stream:
        parts: list[dict[str, Any]] = []
        while True:
            part = target / f"part-{len(parts):02d}"
            size, sha = _copy(stream, part, part_bytes)
            if not size:
                part.unlink()
                break
            parts.append({"name": part.name, "bytes": size, "sha256": sha})
    manifest = {
        "format": install.FORMAT,
        **facts,
        "archives": [{"name": a.name, "bytes": a.stat().st_size} for a in archives],
        "parts": parts,
    }
    draft = target / f"{install.MANIFEST}.new"
    draft.write_text(json.dumps(manifest, indent=1) + "\n")
    os.replace(draft, target / install.MANIFEST)
    shutil.copyfile(install.__file__, target / "install.py")
    return [*(target / str(p["name"]) for p in parts), target / install.MANIFEST, target / "install.py"]


def _copy(stream: install.Parts, part: Path, limit: int) -> tuple[int, str]:
    sha, size = hashlib.sha256(), 0
    with part.open("wb") as out:
        while size < limit and (block := stream.read(min(install.BLOCK, limit - size))):
            out.write(block)
            sha.update(block)
            size += len(block)
    return size, sha.hexdigest()
