"""Rows of one table on their way from a log to its Parquet file: Arrow batches, in memory while they are few, else in a temporary file.

Until the run's clocks are known, `ts` is the line's own time as if its clock were UTC; `worker`, `t` and the run's key are not there yet.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    """Rows of `table` from one log. `directory`: where its file goes once there are many rows; it is needed to send a spool to another process."""

    def __init__(self, table: schemas.Table, directory: Path | None = None) -> None:
        self.table, self.directory = table, directory
        self.schema = spool_schema(table)
        self._struct = pa.struct([pa.field(f.name, pa.string()) if f.name in REPEATED else f for f in self.schema])
        self.rows = 0
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._path: Path | None = None
        self._writer: Any = None

    def add_rows(self, rows: list[dict[str, Any]]) -> None:
        """Rows of the parser; rank columns come from their `tags`."""
        if not rows:
            return
        for row in rows:
            if row["tags"]:
                row.update({name: rank(row["tags"], tag) for name, tag in RANKS.items()})
        columns = pa.array(rows, self._struct).flatten()  # keys that the struct has not are left out
        columns = [column.dictionary_encode() if field.name in REPEATED else column for column, field in zip(columns, self.schema, strict=True)]
        self.add_batch(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def add_batch(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes > MEMORY_BYTES:
            self._spill()

    def _spill(self) -> None:
        if self._writer is None:
            handle, name = tempfile.mkstemp(prefix="apd-rows-", dir=self.directory)
            os.close(handle)
            self._path = Path(name)
            self._writer = pa.ipc.new_stream(name, self.schema)
        for batch in self._batches:
            self._writer.write_batch(batch)
        self._batches, self._bytes = [], 0

    def finish(self, *, to_file: bool = False) -> None:
        """No more rows. `to_file`: none may stay in memory."""
        if self._writer is not None or (to_file and self._batches):
            self._spill()
            self._writer.close()
            self._writer = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows of a finished spool, in the order in which they came. May be called again."""
        if self._path is not None:
            with pa.OSFile(str(self._path)) as file, pa.ipc.open_stream(file) as reader:
                yield from reader
        yield from self._batches

    def close(self) -> None:
        self._batches = []
        if self._writer is not None:
            self._writer.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
