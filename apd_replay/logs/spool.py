"""Rows of one table on their way from a log to its Parquet file: Arrow batches, in memory while they are few, else in a temporary file.

Until the run's clocks are known, `ts` is the line's own time as if its clock were UTC; `worker`, `t` and the run's key are not there yet.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.ipc

from apd_replay import schemas
from apd_replay.logs.prefix import rank

MEMORY_BYTES = 32 << 20
_LATER = ("experiment", "replicate", "worker", "t", "peer_worker")
RANKS = {"dp_rank": "DP", "tp_rank": "TP", "pp_rank": "PP"}
REPEATED = ("file", "role", "kind", "rest")  # few values, many rows


def spool_schema(table: schemas.Table) -> pa.Schema:
    """The table's columns as far as a line alone decides them; the repetitive ones as dictionaries."""
    fields = [f for f in schemas.arrow(table) if f.name not in _LATER]
    return pa.schema([pa.field(f.name, pa.dictionary(pa.int32(), pa.string()) if f.name in REPEATED else f.type) for f in fields])


class Spool:
    """Rows of `table` from one log."""

    def __init__(self, table: schemas.Table) -> None:
        self.table = table
        self.schema = spool_schema(table)
        self.rows = 0
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: Any = None

    def add_rows(self, rows: list[dict[str, Any]]) -> None:
        """Rows of the parser; rank columns come from their `tags`."""
        if not rows:
            return
        columns = []
        for field in self.schema:
            name = field.name
            if name in RANKS:
                columns.append(pa.array([rank(row["tags"], RANKS[name]) if row["tags"] else None for row in rows], field.type))
            elif name in REPEATED:
                columns.append(pa.array([row.get(name) for row in rows], pa.string()).dictionary_encode())
            else:
                columns.append(pa.array([row.get(name) for row in rows], field.type))
        self.add_batch(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def add_batch(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes > MEMORY_BYTES:
            self._spill()

    def _spill(self) -> None:
        if self._writer is None:
            self._file = tempfile.TemporaryFile(prefix="apd-rows-")
            options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False, emit_dictionary_deltas=False)
            self._writer = pa.ipc.new_stream(self._file, self.schema, options=options)
        for batch in self._batches:
            self._writer.write_batch(batch)
        self._batches, self._bytes = [], 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows in the order in which they came. May be called again."""
        if self._writer is not None:
            self._spill()
            assert self._file is not None
            end = self._file.tell()
            self._file.seek(0)
            yield from pa.ipc.open_stream(pa.PythonFile(self._file, mode="r"))
            self._file.seek(end)
        yield from self._batches

    def column(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """The named columns, row by row."""
        for batch in self.batches():
            yield from zip(*(batch.column(name).to_pylist() for name in names), strict=True)

    def close(self) -> None:
        self._batches = []
        if self._file is not None:
            self._file.close()
