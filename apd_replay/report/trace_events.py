"""A run as Chrome trace JSON, for Perfetto: what ran where and when, beside the KV pools.

Process 1 holds the sessions, one thread each; every worker is a process, its requests in lanes (threads) that do not overlap.
A request is a slice with its phases inside: waiting (due to dispatch, on the session only), prefill (to the first token), decode.
Rows are read and written batch by batch, so memory does not grow with the run, but for the names of its sessions.
"""

from __future__ import annotations

import heapq
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import duckdb

from apd_replay import schemas
from apd_replay.errors import InputError
from apd_replay.report.numbers import plain

Event = dict[str, Any]
SESSIONS_PID = 1
_BATCH = 4096
_NAME = 120


def write(run_dir: Path, out: Path) -> int:
    """Write the trace of one run directory (CONTRACT layout); returns how many events it has. `out` is whole or absent."""
    from apd_replay.logs.run import parse_run

    if not (run_dir / "run.json").is_file():
        raise InputError(run_dir / "run.json", "no such file", remedy="give the directory of a whole run, such as results/store/<run id>")
    with tempfile.TemporaryDirectory(prefix="apd-trace-events-") as scratch:
        parse_run(run_dir, Path(scratch), "run", 1)
        with duckdb.connect() as connection:
            connection.execute("SET threads = 1")
            connection.execute("SET memory_limit = '256MB'")
            connection.execute(f"SET temp_directory = '{scratch}/spill'")
            for table in ("requests", "worker_samples", "worker_events", "pauses"):
                connection.read_parquet(f"{scratch}/{table}/experiment=run/replicate=1/part-0.parquet").create_view(table)
            return _write_json(out, json.loads((run_dir / "run.json").read_text(encoding="utf-8")), events(connection))


def events(connection: duckdb.DuckDBPyConnection) -> Iterator[Event]:
    """All events of the run whose tables the connection shows."""
    workers = [name for (name,) in connection.execute(_WORKERS).fetchall()]
    pids = {name: SESSIONS_PID + 1 + k for k, name in enumerate(workers)}
    yield _name("process", SESSIONS_PID, 0, "sessions")
    yield {"ph": "M", "name": "process_sort_index", "pid": SESSIONS_PID, "tid": 0, "args": {"sort_index": 99}}
    for worker, pid in pids.items():
        yield _name("process", pid, 0, worker)
    yield from _requests(connection, pids)
    yield from _samples(connection, pids)
    yield from _instants(connection, pids)


def _requests(connection: duckdb.DuckDBPyConnection, pids: dict[str, int]) -> Iterator[Event]:
    threads: dict[str, int] = {}
    lanes: dict[str, _Lanes] = {}
    for r in _rows(connection, _REQUESTS):
        session = threads.get(r["session"])
        if session is None:
            session = threads[r["session"]] = len(threads) + 1
            yield _name("thread", SESSIONS_PID, session, r["session"])
        start, end = r["dispatched_t"], r["finished_t"] if r["finished_t"] is not None else r["dispatched_t"]
        name = f"{plain(r['session'], 40)} #{r['turn']}"
        facts = {k: plain(v, _NAME) if isinstance(v, str) else v for k, v in r.items() if v is not None}
        if r["scheduled_t"] < start:
            yield _slice("wait", SESSIONS_PID, session, r["scheduled_t"], start, "wait")
        worker = r["decode_worker"] or r["prefill_worker"]
        yield _slice(
            f"#{r['turn']} {r['path']}",
            SESSIONS_PID,
            session,
            start,
            end,
            r["path"],
            {"worker": worker, "status": r["status"]} if worker else facts,
        )
        if worker is not None:
            pid = pids[worker]
            lane, fresh = lanes.setdefault(worker, _Lanes()).take(start, end)
            if fresh:
                yield _name("thread", pid, lane, f"requests, lane {lane}")
            yield _slice(name, pid, lane, start, end, r["path"], facts)
            if r["first_token_t"] is not None:
                yield _slice("prefill", pid, lane, start, r["first_token_t"], "phase")
                yield _slice("decode", pid, lane, r["first_token_t"], end, "phase")
        if r["status"] == "error":
            yield _instant(
                f"error: {r['error_kind'] or 'unnamed'}",
                pids[worker] if worker else SESSIONS_PID,
                end,
                {"session": plain(r["session"], _NAME), "turn": r["turn"], "message": plain(r["error_message"], _NAME)},
            )


def _samples(connection: duckdb.DuckDBPyConnection, pids: dict[str, int]) -> Iterator[Event]:
    for s in _rows(connection, _SAMPLES):
        for name, column in (
            ("KV usage", "token_usage"),
            ("running", "running"),
            ("queued", "queued"),
            ("transfer queue", "transfer_queue"),
        ):
            if s[column] is not None:
                yield {"ph": "C", "name": name, "pid": pids[s["worker"]], "tid": 0, "ts": _us(s["t"]), "args": {name: s[column]}}


def _instants(connection: duckdb.DuckDBPyConnection, pids: dict[str, int]) -> Iterator[Event]:
    for e in _rows(connection, _INSTANTS):
        yield _instant(
            e["kind"],
            pids[e["worker"]],
            e["t"],
            {"line": f"{plain(e['file'], _NAME)}:{e['line']}" if e["file"] else None, "detail": plain(e["detail"], _NAME)},
        )


class _Lanes:
    """The lowest free lane of a worker for each request, in order of dispatch."""

    def __init__(self) -> None:
        self._busy: list[tuple[float, int]] = []
        self._free: list[int] = []
        self._count = 0

    def take(self, start: float, end: float) -> tuple[int, bool]:
        while self._busy and self._busy[0][0] <= start:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        fresh = not self._free
        if fresh:
            self._count += 1
        lane = self._count if fresh else heapq.heappop(self._free)
        heapq.heappush(self._busy, (end, lane))
        return lane, fresh


def _us(t: float) -> float:
    """Seconds to the microseconds of the format; a clock that ran ahead cannot give a negative time."""
    return round(max(t, 0.0) * 1e6, 1)


def _slice(name: str, pid: int, tid: int, start: float, end: float, category: str, args: Event | None = None) -> Event:
    begin = _us(start)
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": pid,
        "tid": tid,
        "ts": begin,
        "dur": round(max(_us(end) - begin, 0.0), 1),
        **({"args": args} if args else {}),
    }


def _instant(name: str, pid: int, t: float, args: Event) -> Event:
    return {
        "ph": "i",
        "s": "p",
        "name": name,
        "cat": "event",
        "pid": pid,
        "tid": 0,
        "ts": _us(t),
        "args": {k: v for k, v in args.items() if v is not None},
    }


def _name(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": f"{what}_name", "pid": pid, "tid": tid, "args": {"name": plain(name, _NAME)}}


def _rows(connection: duckdb.DuckDBPyConnection, sql: str) -> Iterator[dict[str, Any]]:
    cursor = connection.cursor()
    cursor.execute(sql)
    names = [d[0] for d in cursor.description or ()]
    while batch := cursor.fetchmany(_BATCH):
        for row in batch:
            yield dict(zip(names, row, strict=True))


def _write_json(out: Path, run: dict[str, Any], stream: Iterator[Event]) -> int:
    facts = {k: run.get(k) for k in ("experiment", "replicate", "engine", "trace", "cluster", "policy", "status")}
    handle, fresh = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            count = _dump(file, facts, stream)
        os.chmod(fresh, 0o644)
        os.replace(fresh, out)
    except BaseException:
        os.unlink(fresh)
        raise
    return count


def _dump(file: IO[str], facts: dict[str, Any], stream: Iterator[Event]) -> int:
    file.write('{"displayTimeUnit": "ms", "otherData": ' + json.dumps(facts) + ', "traceEvents": [')
    count = 0
    for event in stream:
        file.write(("\n" if count == 0 else ",\n") + json.dumps(event, allow_nan=False, ensure_ascii=False))  # Perfetto shows \\u escapes as they stand
        count += 1
    file.write("\n]}\n")
    return count


_WORKERS = """
SELECT worker FROM (
    SELECT decode_worker AS worker FROM requests UNION SELECT prefill_worker FROM requests
    UNION SELECT worker FROM worker_samples UNION SELECT worker FROM worker_events UNION SELECT decode_worker FROM pauses
) WHERE worker IS NOT NULL ORDER BY regexp_replace(worker, '\\d+$', ''), try_cast(regexp_extract(worker, '\\d+$') AS BIGINT), worker
"""
_REQUESTS = """
SELECT session, turn, path, status, error_kind, error_message, prefill_worker, decode_worker, admission, input_tokens, cached_tokens, output_tokens,
    pause_ms, retractions, scheduled_t, dispatched_t, first_token_t, finished_t
FROM requests WHERE dispatched_t IS NOT NULL ORDER BY dispatched_t, session, turn
"""
_SAMPLES = "SELECT worker, t, token_usage, running, queued, transfer_queue FROM worker_samples WHERE t IS NOT NULL"
_INSTANTS = f"""
SELECT worker, kind, t, file, line, detail FROM worker_events WHERE t IS NOT NULL AND kind IN ({", ".join(f"'{k}'" for k in schemas.EVENT_KINDS if k not in ("pool_size", "ready", "session_open", "session_close"))})
UNION ALL SELECT decode_worker, 'pause of ' || round(sleep_ms)::BIGINT || ' ms', t, NULL, NULL, NULL FROM pauses
"""
