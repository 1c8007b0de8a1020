"""Which tool left this? Found by content, never by name."""

from __future__ import annotations

from pathlib import Path

from apd_replay.errors import InputError
from apd_replay.warehouse.sources import aiperf, bench_serving, dynamo, mapping, srt_slurm
from apd_replay.warehouse.sources.foreign import ForeignRun, objects

CLIENTS = (aiperf, bench_serving, dynamo)
KNOWN = f"known: a run directory (run.json), {', '.join(m.NAME for m in (*CLIENTS, srt_slurm))}; any other client's JSON Lines with --mapping"


def is_run_directory(path: Path) -> bool:
    return path.is_dir() and (path / "run.json").exists()


def read(path: Path, mapping_file: Path | None = None) -> list[ForeignRun]:
    """The runs in `path`; a folder of srt-slurm takes the requests of the client whose file lies in it. Raises InputError."""
    if mapping_file is not None:
        return mapping.read(path, mapping.load(mapping_file))
    if path.is_file():
        return _client_of(path)
    if not path.is_dir():
        raise InputError(path, "is no file or folder", remedy=KNOWN)
    clients = [f for f in sorted(path.glob("**/*.jsonl")) if f.is_file() and not f.is_symlink() and _recognised(f)]
    if srt_slurm.recognise(path):
        [run] = srt_slurm.read(path)
        return [_with_requests(run, clients)]
    if len(clients) == 1:
        return _client_of(clients[0])
    raise InputError(path, f"holds {len(clients)} files of clients" if clients else "run.json is missing, and nothing else in it is known",
                     remedy="give one of them" if clients else f"run.json marks a whole run, a killed one has none; {KNOWN}")  # fmt: skip


def _client_of(file: Path) -> list[ForeignRun]:
    first = next((found for _, found in objects(file)), None)
    if first is None:
        raise InputError(file, "is empty", remedy=KNOWN)
    for client in CLIENTS:
        if client.recognise(first):
            return client.read(file)
    raise InputError(file, f"is of no known tool (its first line has {', '.join(list(first)[:6])})", line=1, remedy=KNOWN)


def _recognised(file: Path) -> bool:
    try:
        first = next((found for _, found in objects(file)), None)
    except InputError:
        return False
    return first is not None and any(client.recognise(first) for client in CLIENTS)


def _with_requests(run: ForeignRun, clients: list[Path]) -> ForeignRun:
    """The logs' run with the requests of the one client in its folder, whose moments count from the logs' t = 0."""
    found = [(file, client) for file in clients for client in _client_of(file)]
    if len(found) != 1:
        run.says += [f"{len(found)} client runs lie in the folder ({', '.join(sorted({f.name for f, _ in found}))}): none is taken"] if found else []
        return run
    file, client = found[0]
    if client.started_ts is not None and run.started_ts is not None:
        shift = client.started_ts - run.started_ts
        for row in client.rows:
            for column in ("scheduled_t", "dispatched_t", "first_token_t", "finished_t"):
                if row.get(column) is not None:
                    row[column] = round(row[column] + shift, 6)
    run.rows, run.model, run.concurrency = client.rows, client.model, client.concurrency
    run.says = [f"requests are those of {file.name}", *client.says, *run.says[1:]]
    run.facts |= {"client": client.tool, **client.facts}
    return run
