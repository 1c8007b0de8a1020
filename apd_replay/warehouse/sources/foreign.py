"""What every source gives: rows of `requests` with what the tool says and nothing else, and facts about the run."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apd_replay import schemas
from apd_replay.errors import InputError

Row = dict[str, Any]
SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass
class ForeignRun:
    """`rows` have keys of schemas.REQUESTS, those that are known; `started_ts` is UTC epoch of t = 0, None where nobody says.
    `logs`: name under logs/ to file. `says`: what the tool leaves open, one sentence each."""

    tool: str
    source: Path
    rows: list[Row]
    says: list[str]
    started_ts: float | None = None
    duration_s: float | None = None
    model: str | None = None
    concurrency: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    logs: dict[str, Path] = field(default_factory=dict)


def write_files(run: ForeignRun, directory: Path) -> str:
    """A run directory but for its run.json: requests.jsonl, logs/, the tool's own file under source/. Returns the digest of the rows and logs."""
    (directory / "logs").mkdir(parents=True)
    digest = hashlib.sha256()
    with open(directory / "requests.jsonl", "w", encoding="utf-8") as out:
        for row in run.rows:
            line = json.dumps({name: row.get(name) for name in schemas.REQUESTS.names}) + "\n"
            digest.update(line.encode())
            out.write(line)
    for name, log in sorted(run.logs.items()):
        shutil.copyfile(log, directory / "logs" / name)
        with open(log, "rb") as content:
            digest.update(f"{name} {hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode())
    if run.source.is_file():
        (directory / "source").mkdir()
        shutil.copyfile(run.source, directory / "source" / "original.jsonl")
    return digest.hexdigest()[:32]


def write_manifest(run: ForeignRun, directory: Path, *, experiment: str, replicate: int, trace: str | None, content: str) -> None:
    """run.json, which makes the directory whole."""
    manifest = {
        "experiment": experiment, "replicate": replicate, "engine": "imported", "trace": trace, "time_scale": None,
        "status": "truncated" if any(row["status"] == "truncated" for row in run.rows) else "complete",
        "started_ts": run.started_ts, "duration_s": run.duration_s if run.duration_s is not None else _span(run.rows),
        "requests": len(run.rows), "errors": count(run.rows, lambda row: row["status"] == "error"),
        "model": run.model, "concurrency": run.concurrency, "source": {"tool": run.tool, "file": run.source.name, "content": content, **run.facts},
    }  # fmt: skip
    (directory / "run.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def objects(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and JSON object of every line. Raises InputError with the line."""
    with open(file, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(file, f"not valid JSON ({error})", line=number, remedy="expected one JSON object a line") from None
            if not isinstance(found, dict):
                raise InputError(file, "not a JSON object", line=number, remedy="expected one JSON object a line")
            yield number, found


def number(value: Any, file: Path, line: int, column: str) -> float | None:
    """A finite number, or None for null. Raises InputError for anything else."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or abs(value) == float("inf"):
        raise InputError(file, f"{json.dumps(value)[:60]} is not a number", line=line, column=column)
    return value


def whole(value: Any, file: Path, line: int, column: str) -> int | None:
    found = number(value, file, line, column)
    if found is not None and found != int(found):
        raise InputError(file, f"{json.dumps(value)[:60]} is not a whole number", line=line, column=column)
    return None if found is None else int(found)


def count(rows: list[Row], test: Callable[[Row], bool]) -> int:
    return sum(map(test, rows))


def _span(rows: list[Row]) -> float | None:
    ends = [row["finished_t"] for row in rows if row.get("finished_t") is not None]
    return round(max(ends), 6) if ends else None
