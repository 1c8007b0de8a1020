"""The store of raw runs: results/store/{run_id}/, each whole or absent, filled once and never written again.

A run is filled in a hidden folder beside its place, gets a list of checksums (`sha256sum -c SHA256SUMS` checks it) and
takes its place by one rename. A fill that fails or is killed stays as `.{run_id}.failed-<time>`, logs and all. Two
writers of the same run: the second waits, then finds it there. A run is named by the digest of all that decides it
(replay/identity.py), so results/runs/{experiment}/r{n}.json only has to say which one stands for a replicate.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apd_replay.errors import InputError, RunError

CHECKSUMS = "SHA256SUMS"


def stored(results: Path, run_id: str) -> Path:
    """Where the run lies, or would lie."""
    return results / "store" / run_id


def manifest_file(results: Path, experiment: str, replicate: int) -> Path:
    return results / "runs" / experiment / f"r{replicate}.json"


@contextmanager
def adding(results: Path, run_id: str) -> Iterator[Path | None]:
    """A fresh folder to fill with the run, sealed on leaving; None where the run is there already.

    Raises RunError if what was filled has no run.json, the mark of a run that came to its end.
    """
    place = stored(results, run_id)
    place.parent.mkdir(parents=True, exist_ok=True)
    with _locked(place.parent / f".{run_id}.lock"):
        if place.is_dir():
            yield None
            return
        filling = place.parent / f".{run_id}.filling"
        _set_aside(filling)  # we hold the lock, so whoever filled it is dead
        filling.mkdir()
        try:
            yield filling
            if not (filling / "run.json").is_file():
                raise RunError(f"run {run_id} left no run.json, so it is not whole; what there is lies in {filling}")
            _write_checksums(filling)
        except BaseException:
            _set_aside(filling)
            raise
        os.replace(filling, place)


def write_manifest(results: Path, experiment: str, replicate: int, run_id: str, **facts: Any) -> Path:
    """Name the stored run that stands for a replicate: run.json's content, with the keys of `facts` in place of its own."""
    run = stored(results, run_id) / "run.json"
    content = {**_read_json(run), **facts, "experiment": experiment, "replicate": replicate, "run_id": run_id}
    file = manifest_file(results, experiment, replicate)
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)
    return file


def manifests(results: Path) -> list[dict[str, Any]]:
    """All manifests under runs/, by experiment and replicate."""
    found = [_read_json(file) for file in (results / "runs").glob("*/r*.json")]
    return sorted(found, key=lambda m: (m["experiment"], m["replicate"]))


def run_directory(run: Path) -> Path:
    """The run directory that is meant: `run` itself, or the stored run that the manifest `run` names."""
    if run.is_dir():
        return run
    run_id = _read_json(run).get("run_id")
    directory = stored(run.parent.parent.parent, str(run_id))
    if not directory.is_dir():
        raise InputError(run, f"names run {run_id}, but there is no {directory}", remedy="delete the manifest to make the run again")
    return directory


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Exclusive among processes, given back by the kernel when the holder dies. The lock file stays where the run failed:
    removing it would let two writers in; once a run is sealed, whoever still waits finds the run."""
    with open(file, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        file.unlink(missing_ok=True)


def _set_aside(filling: Path) -> None:
    if not filling.exists():
        return
    base = f"{filling.name.removesuffix('.filling')}.failed-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    names = (base if k == 0 else f"{base}.{k}" for k in range(1000))
    filling.rename(next(place for name in names if not (place := filling.with_name(name)).exists()))


def _write_checksums(directory: Path) -> None:
    lines = []
    for file in sorted(p for p in directory.rglob("*") if p.is_file()):
        with open(file, "rb") as content:
            lines.append(f"{hashlib.file_digest(content, 'sha256').hexdigest()}  {file.relative_to(directory).as_posix()}\n")
    (directory / CHECKSUMS).write_text("".join(lines), encoding="utf-8")


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(file, "no such file") from None
    except ValueError as error:
        raise InputError(file, f"not a JSON document ({error})") from None
    if not isinstance(content, dict):
        raise InputError(file, "expected a JSON object")
    return content
