"""A run directory becomes its tables: records, worker logs, transfers, loads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from apd_replay import schemas
from apd_replay.errors import InputError
from apd_replay.logs import links as link_search
from apd_replay.logs import snapshots, tables, transfers
from apd_replay.logs.clocks import Clock, Evidence, decide
from apd_replay.logs.collect import Log, collect_all
from apd_replay.logs.reading import logs_in_order, worker_name
from apd_replay.logs.records import table_path, write_record_tables

_SHARED_EVENTS = 2_000  # failed rooms compared per log to find its clock


@dataclass
class Summary:
    """What was read, for the one line that the command prints."""

    files: int = 0
    lines: int = 0
    unknown: int = 0
    cut: int = 0
    notices: list[str] = field(default_factory=list)


def parse_run(run_dir: Path, out_root: Path, experiment: str | None = None, replicate: int | None = None) -> Summary:
    """Write every per-run table of schemas.py under `out_root`, also the empty ones. `experiment`, `replicate`: default run.json's."""
    manifest = _manifest(run_dir)
    key = tables.Key(experiment or str(manifest["experiment"]), int(manifest["replicate"]) if replicate is None else replicate, manifest["started_ts"])
    notices = write_record_tables(run_dir, out_root, key.experiment, key.replicate, key.started_ts)

    def path_of(table: str) -> Path:
        return table_path(out_root, table, key.experiment, key.replicate)

    requests = _requests(path_of("requests"))
    files = sorted(p for p in (run_dir / "logs").glob("**/*") if p.is_file()) if (run_dir / "logs").is_dir() else []
    pages = [p for p in files if p.suffix != ".log" and snapshots.is_snapshot(p)]
    logs = collect_all(logs_in_order([p for p in files if p not in pages]).values(), run_dir)
    try:
        duration = manifest.get("duration_s")
        window = (key.started_ts, key.started_ts + float(duration)) if duration and key.started_ts is not None else None
        clocks = clocks_of(logs, requests, key.started_ts, window)
        links = links_of(logs, clocks, requests)
        links.queues = _queues(manifest.get("workers"))
        tables.write_log_tables(logs, clocks, links, key, path_of)
        events = (event for log, clock in zip(logs, clocks, strict=True) for event in tables.events_of(log, clock))
        tables.write_rows(transfers.join(requests, events, links, key.started_ts), schemas.TRANSFERS, key, path_of("transfers"))
    finally:
        for log in logs:
            log.close()
    loads = snapshots.read_loads(run_dir / "loads.jsonl", key.started_ts) if key.started_ts is not None else []
    for page in pages:
        loads += snapshots.read_snapshot(page, worker_name(page).split(".")[0], None)
    tables.write_rows(loads, schemas.LOADS, key, path_of("loads"))
    return summary(logs, notices)


def summary(logs: list[Log], notices: list[str]) -> Summary:
    out = Summary(notices=list(dict.fromkeys([*notices, *(n for log in logs for n in log.notices)])))
    for account in (a for log in logs for a in log.accounts):
        out.files += 1
        out.lines += account["lines"]
        out.unknown += account["unknown_lines"]
        out.cut += account["cut_lines"] + account["over_long_lines"]
    return out


def clocks_of(logs: list[Log], requests: list[dict[str, Any]], started_ts: float | None, window: tuple[float, float] | None) -> list[Clock]:
    """A clock for each log, in order."""
    ended = {}
    if started_ts is not None:
        ended = {r["bootstrap_room"]: started_ts + r["finished_t"] for r in requests if r["status"] == "error" and r["finished_t"] is not None}
    evidence = {}
    for log in logs:
        shared: list[tuple[float, float]] = []
        for event in tables.events_of(log) if ended else ():
            if event.room in ended and event.ts is not None and len(shared) < _SHARED_EVENTS:
                shared.append((event.ts, ended[event.room]))
        evidence[id(log)] = Evidence(log.role, log.first_stamp, log.last_stamp, log.entry_gaps, log.served, shared)
    by_name = {str(i): evidence[id(log)] for i, log in enumerate(logs)}
    clocks = decide(by_name, window)
    return [clocks[str(i)] for i in range(len(logs))]


def links_of(logs: list[Log], clocks: list[Clock], requests: Iterable[dict[str, Any]]) -> link_search.Links:
    prefill_of, decode_of = {}, {}
    for request in requests:
        room = request["bootstrap_room"]
        if room is not None:
            if request["prefill_worker"]:
                prefill_of[room] = request["prefill_worker"]
            if request["decode_worker"]:
                decode_of[room] = request["decode_worker"]
    addresses = {log.engine_address: log.worker for log in logs if log.engine_address and log.role == "decode"}
    events = (event for log, clock in zip(logs, clocks, strict=True) for event in tables.events_of(log, clock))
    links = link_search.find(events, prefill_of, decode_of, addresses)
    links.ranks = {log.worker: int(log.arguments["tp_size"]) for log in logs if log.arguments.get("tp_size", "").isdecimal()}
    return links


def _queues(workers: Any) -> dict[str, int]:
    """D -> the P's transfer queue that serves it, where run.json states it."""
    stated = {name: worker.get("transfer_queue") for name, worker in workers.items() if isinstance(worker, dict)} if isinstance(workers, dict) else {}
    return {name: queue for name, queue in stated.items() if isinstance(queue, int)}


def _requests(path: Path) -> list[dict[str, Any]]:
    columns = ["session", "turn", "prefill_worker", "decode_worker", "dispatched_t", "first_token_t", "finished_t", "bootstrap_room", "status", "error_kind"]
    rows: list[dict[str, Any]] = pq.ParquetFile(path).read(columns).to_pylist()
    return [row for row in rows if row["bootstrap_room"] is not None]


def _manifest(run_dir: Path) -> dict[str, Any]:
    path = run_dir / "run.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror}", remedy="a run directory is whole once it has run.json") from None
    except ValueError as error:
        raise InputError(path, f"not valid JSON ({error})", remedy="write the run again") from None
    for name, kinds in (("experiment", str), ("replicate", int), ("started_ts", (int, float, type(None)))):
        if not isinstance(content, dict) or name not in content or not isinstance(content[name], kinds):
            raise InputError(path, "missing or of the wrong type", column=name, remedy="see CONTRACT.md, run.json")
    return dict(content)
