"""Collected logs become the Parquet tables of a run: clocks applied, workers named, each file whole or absent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from apd_replay import schemas
from apd_replay.logs.clocks import Clock
from apd_replay.logs.collect import Log
from apd_replay.logs.links import Event, Links

# how columns are stored: a third less time and size than with one encoding for all
_FEW_VALUES = ("ts", "t", "token_usage", "preallocated_usage")
_SEARCHED = ("ts", "t", "kind", "room")

DICTIONARY = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True, slots=True)
class Key:
    """Whose rows they are. `started_ts`: UTC epoch of t = 0; None leaves `t` null."""

    experiment: str
    replicate: int
    started_ts: float | None


def write_log_tables(logs: list[Log], clocks: list[Clock], links: Links, key: Key, path_of: Any) -> None:
    """worker_samples, worker_events, request_stats, log_files, unknown_lines. `path_of(table name)` is where each goes."""
    spools = {"worker_samples": "samples", "worker_events": "events", "request_stats": "stats"}
    for name, attribute in spools.items():
        table = schemas.TABLES[name]
        batches = (
            _final(batch, table, log.worker, clock, links, key)
            for log, clock in zip(logs, clocks, strict=True)
            for batch in getattr(log, attribute).batches()
        )
        write_batches(batches, table, path_of(name))
    accounts = [{**row, "clock_offset_s": clock.offset_s, "clock_basis": clock.basis} for log, clock in zip(logs, clocks, strict=True) for row in log.accounts]
    write_rows(accounts, schemas.LOG_FILES, key, path_of("log_files"))
    write_rows([row for log in logs for row in log.unknown], schemas.UNKNOWN_LINES, key, path_of("unknown_lines"))


def write_rows(rows: list[dict[str, Any]], table: schemas.Table, key: Key, path: Path) -> None:
    """A small table, from dictionaries; `t` is added where the rows have `ts` only."""
    schema = schemas.arrow(table)
    for row in rows:
        row.update(experiment=key.experiment, replicate=key.replicate)
        if "ts" in row and "t" in schema.names and key.started_ts is not None:
            row.setdefault("t", round(row["ts"] - key.started_ts, 6))
    columns = [_as(pa.array([row.get(field.name) for row in rows], field.type), stored.type) for field, stored in zip(schema, _stored(schema), strict=True)]
    write_batches([pa.RecordBatch.from_arrays(columns, schema=_stored(schema))], table, path)


def write_batches(batches: Iterable[pa.RecordBatch], table: schemas.Table, path: Path) -> None:
    """One Parquet file of the table's schema, whole or absent, in bounded memory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    schema = schemas.arrow(table)
    words = [field.name for field in schema if field.type == pa.string() or field.name in _FEW_VALUES]
    differences = {field.name: "DELTA_BINARY_PACKED" for field in schema if pa.types.is_integer(field.type)}
    searched = [name for name in _SEARCHED if name in schema.names]
    try:
        # the file's own types say everything: without Arrow's copy of the schema, a column written as a dictionary reads as plain text
        with pq.ParquetWriter(part, _stored(schema), compression="zstd", compression_level=1, use_dictionary=words, column_encoding=differences,
                              write_statistics=searched, store_schema=False) as writer:  # fmt: skip
            for group in _grouped(batches, _stored(schema)):
                writer.write_table(group)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _stored(schema: pa.Schema) -> pa.Schema:
    """Text as dictionaries: the columns are repetitive and arrive as such."""
    return pa.schema([pa.field(f.name, DICTIONARY, f.nullable) if f.type == pa.string() else f for f in schema])


def _repeat(value: str, rows: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows), pa.array([value]))


def _as(column: Any, wanted: pa.DataType) -> Any:
    return column if column.type == wanted else column.cast(wanted)


def _grouped(batches: Iterable[pa.RecordBatch], schema: pa.Schema, least: int = 1 << 17) -> Iterator[pa.Table]:
    """Batches gathered into row groups worth their overhead."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= least:
            yield pa.Table.from_batches(waiting, schema)
            waiting, rows = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting, schema)


def _final(batch: pa.RecordBatch, table: schemas.Table, worker: str, clock: Clock, links: Links, key: Key) -> pa.RecordBatch:
    rows = batch.num_rows
    columns: dict[str, Any] = {name: batch.column(name) for name in batch.schema.names}
    stamps = columns["ts"]
    if clock.offset_s:
        stamps = columns["ts"] = pc.subtract(stamps, clock.offset_s)
    columns["t"] = pc.round(pc.subtract(stamps, key.started_ts), 6) if key.started_ts is not None else pa.nulls(rows, pa.float64())
    columns["experiment"] = _repeat(key.experiment, rows)
    columns["replicate"] = pa.repeat(pa.scalar(key.replicate, pa.int32()), rows)
    columns["worker"] = _repeat(worker, rows)
    if table is schemas.WORKER_EVENTS:
        columns["peer_worker"] = _peers(batch, worker, links)
    schema = _stored(schemas.arrow(table))
    return pa.RecordBatch.from_arrays([_as(columns[f.name], f.type) for f in schema], schema=schema)


def events_of(log: Log, clock: Clock | None = None) -> Iterator[Event]:
    """The log's events that name a room or an address, as the joins need them, in file order, with `ts` by the given clock."""
    if log.link_events is None:
        order = {account["file"]: at for at, account in enumerate(log.accounts)}
        events = (event for batch in log.events.batches() for event in _events(batch.filter(_names_a_link(batch)), log.worker))
        log.link_events = sorted(events, key=lambda event: (order[event.file], event.line))
    shift = (clock.offset_s or 0.0) if clock is not None else 0.0
    return (event if not shift or event.ts is None else event._replace(ts=event.ts - shift) for event in log.link_events)


def _names_a_link(batch: pa.RecordBatch) -> pa.Array:
    return pc.or_(batch.column("room").is_valid(), batch.column("peer").is_valid())


def _peers(batch: pa.RecordBatch, worker: str, links: Links) -> pa.Array:
    """Who is at the other end, for each row."""
    names = _names_a_link(batch)
    found = pa.array([links.other_side(event) for event in _events(batch.filter(names), worker)], pa.string())
    return pc.replace_with_mask(pa.nulls(batch.num_rows, pa.string()), names, found)


def _events(batch: pa.RecordBatch, worker: str) -> Iterator[Event]:
    words = (_words(batch.column(name)) for name in ("role", "kind", "peer", "file", "rest"))
    numbers = (batch.column(name).to_pylist() for name in ("room", "line", "ts"))
    for role, kind, peer, file, rest, room, line, ts in zip(*words, *numbers, strict=True):
        yield Event(worker, role, kind, room, peer, file, line, ts, rest is not None and '"endpoint": true' in rest)


def _words(column: pa.Array) -> list[str | None]:
    """Text, one object for each different one."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    words: list[str | None] = [*encoded.dictionary.to_pylist(), None]
    return [words[at] for at in pc.fill_null(encoded.indices, len(words) - 1).to_numpy(zero_copy_only=False).tolist()]
