"""One log, with its rotated files, read from end to end: its rows, its accounts and what it tells about its clock."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apd_replay import schemas
from apd_replay.errors import RunError
from apd_replay.logs.links import Event
from apd_replay.logs.parser import LogParser
from apd_replay.logs.reading import Block, Reader, worker_name
from apd_replay.logs.spool import Spool

if TYPE_CHECKING:
    from apd_replay.logs.fast import FastLane

_PARALLEL_FROM_BYTES = 48 << 20
_ROWS_AT_ONCE = 2_000  # of the parser, before they become a batch: batches of few rows cost as much as those of many
_FAST_FROM_BYTES = 2 << 20  # below that, loading the fast path costs more than it saves


@dataclass
class Log:
    """What one log gave. `accounts`: rows of log_files, clock columns still to come; `unknown`: rows of unknown_lines."""

    worker: str
    samples: Spool
    events: Spool
    stats: Spool
    accounts: list[dict[str, Any]] = field(default_factory=list)
    unknown: list[dict[str, Any]] = field(default_factory=list)
    role: str | None = None
    arguments: dict[str, str] = field(default_factory=dict)
    engine_address: str | None = None
    first_stamp: float | None = None
    last_stamp: float | None = None
    served: list[float] = field(default_factory=list)
    entry_gaps: list[float] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    link_events: list[Event] | None = None  # read by tables.events_of, once

    def close(self) -> None:
        for spool in (self.samples, self.events, self.stats):
            spool.close()


def collect_all(groups: Iterable[list[Path]], root: Path | None = None, jobs: int | None = None) -> list[Log]:
    """`collect` for each log, on all cores where that pays."""
    logs = list(groups)
    size = sum(path.stat().st_size for paths in logs for path in paths)
    jobs = min(jobs or os.cpu_count() or 1, len(logs))
    if jobs < 2 or size < _PARALLEL_FROM_BYTES:
        return [collect(paths, root) for paths in logs]
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    largest_first = sorted(range(len(logs)), key=lambda i: -sum(path.stat().st_size for path in logs[i]))
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        parts = {i: pool.submit(_collect_to_files, logs[i], root) for i in largest_first}
        done = [parts[i].exception() or parts[i].result() for i in range(len(logs))]
    for failure in (d for d in done if isinstance(d, BaseException)):
        for log in (d for d in done if isinstance(d, Log)):
            log.close()
        raise failure
    return [d for d in done if isinstance(d, Log)]


def _collect_to_files(paths: list[Path], root: Path | None) -> Log:
    """In a process of its own: rows that are many travel through files, not through memory."""
    log = collect(paths, root)
    for spool in (log.samples, log.events, log.stats):
        spool.finish(to_file=True)
    return log


def collect(paths: list[Path], root: Path | None = None, *, fast: bool | None = None) -> Log:
    """Read the files of one log, oldest first. `root`: file names in the rows are relative to it. `fast`: None decides by size."""
    log = Log(worker_name(paths[-1]), Spool(schemas.WORKER_SAMPLES), Spool(schemas.WORKER_EVENTS), Spool(schemas.REQUEST_STATS))
    parser = LogParser()
    collects = gc.isenabled()
    gc.disable()  # rows hold no cycles, and looking for some takes a tenth of the time
    try:
        for path in paths:
            _file(log, parser, path, _name(path, root), fast)
    except BaseException:
        log.close()
        raise
    finally:
        if collects:
            gc.enable()
    for spool in (log.samples, log.events, log.stats):
        spool.finish()
    log.role, log.engine_address = parser.role, parser.engine_address
    log.arguments = parser.arguments or {}
    return log


def _file(log: Log, parser: LogParser, path: Path, name: str, fast: bool | None) -> None:
    reader = Reader(path)
    parser.start_file(name)
    lane = _fast_lane(log, parser, fast) if fast or (fast is None and path.stat().st_size >= _FAST_FROM_BYTES) else None
    for block in reader.blocks():
        if block.over_long:
            parser.over_long(bytes(block.data), block.first_line)
        elif lane is not None:
            lane.block(block)
        else:
            _line_by_line(parser, block)
        if parser.waiting_rows > _ROWS_AT_ONCE:
            _flush(log, parser)
    if lane is not None:
        lane.finish()
    _flush(log, parser, last=True)
    _account(log, parser, reader, name)


def _fast_lane(log: Log, parser: LogParser, fast: bool | None) -> FastLane | None:
    try:
        from apd_replay.logs.fast import FastLane
    except ImportError:
        if fast:
            raise
        log.notices.append("large logs are read line by line, several times slower: the compiled part is missing or of another version (pip install again, with a C compiler)")
        return None
    return FastLane(parser, log.samples, log.events, log.stats)


def _line_by_line(parser: LogParser, block: Block) -> None:
    offset = block.offset
    lines = bytes(block.data).split(b"\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, start=block.first_line):
        parser.line(line, number, offset)
        offset += len(line) + 1


def _flush(log: Log, parser: LogParser, *, last: bool = False) -> None:
    samples, events, stats = parser.take(last=last)
    log.samples.add_rows(samples)
    log.events.add_rows(events)
    log.stats.add_rows(stats)


def _account(log: Log, parser: LogParser, reader: Reader, name: str) -> None:
    lines = parser.lines
    log.accounts.append({
        "worker": log.worker, "role": "+".join(sorted(parser.roles)) or None, "file": name, "lines": sum(lines.values()), "bytes": reader.size,
        "row_lines": lines["row"], "known_lines": lines["known"], "cut_lines": lines["cut"], "unknown_lines": lines["unknown"],
        "over_long_lines": lines["over_long"], "bad_utf8_lines": parser.bad_utf8, "cut_last_line": reader.cut_last_line,
        "launches": parser.launches, "ranks": sorted(parser.tags), "engine_address": parser.engine_address,
        "counts": json.dumps(dict(sorted(parser.counts.items()))),
        "server_args": json.dumps(parser.arguments) if parser.arguments and parser.launches else None,
    })  # fmt: skip
    for shape, found in parser.shapes.found.items():
        log.unknown.append({"worker": log.worker, "file": name, "shape": shape, "count": found.count, "example": found.example, "line": found.line})
    if reader.cut_gzip:
        log.notices.append(f"{reader.path}: the archive ends too early; the {reader.size} bytes before that count")
    if reader.lines != sum(lines.values()):
        raise RunError(f"{reader.path}: {reader.lines} lines, but {dict(lines)} counted; this is a fault of the parser")
    stamps = [s for s in (log.first_stamp, parser.first_stamp, log.last_stamp, parser.last_stamp) if s is not None]
    if stamps:
        log.first_stamp, log.last_stamp = min(stamps), max(stamps)
    log.served += parser.served
    log.entry_gaps += parser.entry_gaps


def _name(path: Path, root: Path | None) -> str:
    try:
        return str(path.relative_to(root)) if root is not None else str(path)
    except ValueError:
        return str(path)
