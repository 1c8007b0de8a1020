"""Runs made elsewhere become stored runs with a manifest and tables (`apd import`): run directories as they are, what other
tools leave (sources/) by way of one.

Everything is checked before anything is written: each directory against the contract, all of them against each other and against
what the results folder holds. An imported run's id is the digest of its content, so that importing it twice changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from apd_replay.configuration import ID, ID_RULE
from apd_replay.errors import ApdError, InputError
from apd_replay.logs.records import table_path, write_record_tables
from apd_replay.logs.run import parse_run
from apd_replay.replay import store
from apd_replay.trace import table as trace_table
from apd_replay.trace.load import load as load_trace
from apd_replay.trace.model import Trace
from apd_replay.warehouse.sources import finding, foreign

_REQUIRED: dict[str, tuple[type, ...]] = {
    "experiment": (str,), "replicate": (int,), "status": (str,), "trace": (str,), "time_scale": (int, float),
    "started_ts": (int, float), "duration_s": (int, float), "requests": (int,), "errors": (int,),
}  # fmt: skip
_UNKNOWN = ("trace", "time_scale", "started_ts", "duration_s")  # null where another tool does not say
_ENGINES = ("sglang", "sim", "emulator", "imported")
_RUN_STATUSES = ("complete", "truncated", "failed")
_WORDS = {int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True)
class Found:
    """A run directory that keeps the contract."""

    directory: Path
    manifest: dict[str, Any]
    run_id: str
    notices: tuple[str, ...]

    @property
    def experiment(self) -> str:
        return str(self.manifest["experiment"])

    @property
    def replicate(self) -> int:
        return int(self.manifest["replicate"])


def import_runs(paths: list[Path], results: Path, *, trace_file: Path | None = None, experiment: str | None = None, mapping: Path | None = None,
                say: Callable[[str], None] = print) -> list[Found]:
    """Copy the runs into `results`, write their tables and manifests, and the trace's table where a trace is given.

    `experiment` renames all of them; runs of other tools have no name but this. Raises InputError or ApdError with one line, and
    has written nothing then.
    """
    with tempfile.TemporaryDirectory(prefix="apd-import-") as scratch:
        trace_name = trace_file.name.split(".")[0] if trace_file else None
        return _import(_run_directories(paths, Path(scratch), experiment, mapping, trace_name, results, say), results, trace_file, experiment, say)


def _run_directories(paths: list[Path], scratch: Path, experiment: str | None, mapping: Path | None, trace: str | None, results: Path,
                     say: Callable[[str], None]) -> list[Path]:
    """Each path as a run directory; those of other tools are written into `scratch`, numbered behind the replicates that are there."""
    out: list[Path] = []
    taken = _taken(results, experiment)
    for path in paths:
        if finding.is_run_directory(path) and mapping is None:
            out.append(path)
            continue
        for run in finding.read(path, mapping):
            if experiment is None:
                raise ApdError(f"{path}: {run.tool} names no experiment; give it an id with --as ID")
            for sentence in run.says:
                say(f"{path.name}: {sentence}")
            directory = scratch / str(len(out))
            content = foreign.write_files(run, directory)
            replicate = taken.setdefault(content, max(taken.values(), default=0) + 1)
            foreign.write_manifest(run, directory, experiment=experiment, replicate=replicate, trace=trace, content=content)
            out.append(directory)
    return out


def _taken(results: Path, experiment: str | None) -> dict[str, int]:
    """Replicates of the experiment that are there, by the content they were imported with: the same file again is the same replicate."""
    own = [m for m in store.manifests(results) if m["experiment"] == experiment]
    return {str((m.get("source") or {}).get("content", f"replicate {m['replicate']}")): m["replicate"] for m in own}


def _import(directories: list[Path], results: Path, trace_file: Path | None, experiment: str | None, say: Callable[[str], None]) -> list[Found]:
    found = [_examine(d, experiment) for d in directories]
    _check_collisions(found, results)
    trace = _trace_of(found, trace_file) if trace_file else None
    for run in found:
        with store.adding(results, run.run_id) as place:
            if place is not None:
                shutil.copytree(run.directory, place, dirs_exist_ok=True)
        parsed = parse_run(store.stored(results, run.run_id), results / "tables", experiment=run.experiment, replicate=run.replicate)
        store.write_manifest(results, run.experiment, run.replicate, run.run_id, engine=run.manifest["engine"])
        for notice in dict.fromkeys([*run.notices, *parsed.notices]):
            say(notice)
    if trace is not None:
        trace_table.write(trace, results / "traces" / f"{trace.name}.parquet")
    return found


def _examine(directory: Path, experiment: str | None) -> Found:
    if not directory.is_dir():
        raise InputError(directory, "is no folder", remedy="give run directories: folders with run.json and requests.jsonl")
    for place in (directory.resolve(), *directory.resolve().parents):
        if (place / "store").is_dir() and (place / "runs").is_dir():
            raise InputError(directory, f"lies in the results folder {place}", remedy="import the original, or a copy that lies elsewhere")
    manifest = _manifest(directory / "run.json")
    if experiment is not None:
        manifest["experiment"] = experiment
    _check_id(directory / "run.json", "experiment", manifest["experiment"])
    if manifest["trace"] is not None:
        _check_id(directory / "run.json", "trace", manifest["trace"])
    notices = _check_rows(directory, manifest)
    return Found(directory, manifest, _digest(directory, manifest["experiment"]), tuple(notices))


def _manifest(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError:
        raise InputError(file, "is missing", remedy="run.json marks a whole run; a killed run has none") from None
    except ValueError as error:
        raise InputError(file, f"not valid JSON ({error})") from None
    if not isinstance(content, dict):
        raise InputError(file, "expected a JSON object")
    for key, kinds in _REQUIRED.items():
        value = content.get(key)
        if value is None and key in _UNKNOWN and content.get("engine") == "imported":
            continue
        if not isinstance(value, kinds) or isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
            problem = "is missing" if value is None else f"{json.dumps(value)[:60]} is not {_WORDS[kinds[-1]]}"
            raise InputError(file, problem, column=key, remedy=f"expected {_WORDS[kinds[-1]]}")
    content.setdefault("engine", "imported")
    for key, allowed in (("engine", _ENGINES), ("status", _RUN_STATUSES)):
        if content[key] not in allowed:
            raise InputError(file, f"{content[key]!r} is not allowed", column=key, remedy=f"allowed: {', '.join(allowed)}")
    return content


def _check_id(file: Path, key: str, value: str) -> None:
    if not ID.fullmatch(value):
        raise InputError(file, f"{value!r:.120} cannot name a folder", column=key, remedy=ID_RULE)


def _check_rows(directory: Path, manifest: dict[str, Any]) -> list[str]:
    """Read the rows once, into nowhere, and compare them with what run.json says. Returns notices (a cut last line)."""
    with tempfile.TemporaryDirectory() as scratch:
        notices = write_record_tables(directory, Path(scratch), "x", 0, manifest["started_ts"])
        rows = pq.read_table(table_path(Path(scratch), "requests", "x", 0), columns=["request_id", "status"], partitioning=None)
    ids = rows["request_id"]
    if len(pc.unique(ids)) < len(ids):
        twice = next(v["values"] for v in pc.value_counts(ids).to_pylist() if v["counts"] > 1)
        raise InputError(directory / "requests.jsonl", f"request_id {twice!r} stands there twice", remedy="each is unique in a run")
    errors = pc.sum(pc.equal(rows["status"], "error")).as_py() or 0
    if manifest["status"] == "complete" and (len(ids), errors) != (manifest["requests"], manifest["errors"]):
        raise InputError(directory / "run.json", f"says {manifest['requests']} requests and {manifest['errors']} errors, but requests.jsonl has {len(ids)} and {errors}",
                         remedy="a complete run has all its rows")  # fmt: skip
    return notices


def _digest(directory: Path, experiment: str) -> str:
    """Names and bytes of all files; the experiment's id too, because the same run may stand under another id (`--as`)."""
    digest = hashlib.sha256(f"{experiment}\0".encode())
    for file in sorted(directory.rglob("*")):
        if file.is_symlink():
            raise InputError(file, "is a link", remedy="a run directory holds plain files")
        if file.is_file():
            with open(file, "rb") as content:
                digest.update(f"{file.relative_to(directory).as_posix()}\0{hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()[:32]


def _check_collisions(found: list[Found], results: Path) -> None:
    here: dict[tuple[str, int], Found] = {}
    for run in found:
        other = here.setdefault((run.experiment, run.replicate), run)
        if other is not run:
            raise ApdError(f"{run.directory} and {other.directory} are both {run.experiment} replicate {run.replicate}; import one of them with --as ID")
    known = store.manifests(results) + [f.manifest for f in found]
    standing = {(m["experiment"], m["replicate"]): m["run_id"] for m in store.manifests(results)}
    for run in found:
        run_id = standing.get((run.experiment, run.replicate))
        if run_id is not None and run_id != run.run_id:
            raise ApdError(f"{run.directory}: {results} has another run of {run.experiment} replicate {run.replicate} ({run_id}); give this one its own id with --as ID")
        for m in known:
            if m["experiment"] == run.experiment:
                for key in ("engine", "trace"):
                    if m[key] != run.manifest[key]:
                        raise ApdError(f"{run.directory}: {key} {run.manifest[key]!r}, but replicate {m['replicate']} of {run.experiment} has {m[key]!r}; "
                                       "an experiment id means one engine and one trace: give this one its own id with --as ID")  # fmt: skip


def _trace_of(found: list[Found], file: Path) -> Trace:
    """The trace under the name that the runs give it."""
    names = sorted({run.manifest["trace"] for run in found})
    if len(names) > 1:
        raise ApdError(f"{file}: the runs name several traces ({', '.join(names)}); import the runs of each trace by themselves")
    trace = load_trace(file)
    stated = {run.manifest.get("trace_digest") for run in found}
    digests = {d for d in stated if isinstance(d, str) and re.fullmatch(r"[0-9a-f]{64}", d)}
    if digests - {trace.digest}:
        raise InputError(file, f"has digest {trace.digest[:12]}, but the runs were of {', '.join(sorted(d[:12] for d in digests))}", remedy="give the trace that was replayed")
    return Trace(names[0], trace.digest, trace.sessions)
