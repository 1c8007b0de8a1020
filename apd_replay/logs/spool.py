"""Rows of one table on their way from a log to its Parquet file: Arrow batches, in memory while they are few, else in a temporary file.

Until the run's clocks are known, `ts` is the line's own time as if its clock were UTC; `worker`, `t` and the run's key are not there yet.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import lru_cache
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
        self._batches: list[pa.RecordBatch] = []  # behind those in the file
        self._fixed: list[dict[str, Any]] = []  # of every batch, wherever it is
        self._bytes = 0
        self._path: Path | None = None
        self._in_file = 0

    def add_rows(self, rows: list[dict[str, Any]]) -> None:
        """Rows of the parser; rank columns come from their `tags`."""
        if not rows:
            return
        for row in rows:
            if row["tags"]:
                row.update({name: rank(row["tags"], tag) for name, tag in RANKS.items()})
        columns = pa.array(rows, self._struct).flatten()  # keys that the struct has not are left out
        columns = [column.dictionary_encode() if field.name in REPEATED else column for column, field in zip(columns, self.schema, strict=True)]
        self.add_columns(len(rows), dict(zip(self.schema.names, columns, strict=True)), {})

    def add_columns(self, rows: int, columns: dict[str, pa.Array], fixed: dict[str, Any]) -> None:
        """Rows by column; `fixed`: columns of one value. A column that is in neither is null."""
        self.rows += rows
        batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        self._batches.append(batch)
        self._fixed.append(fixed)
        self._bytes += batch.nbytes
        if self._bytes > MEMORY_BYTES:
            self._spill()

    def _spill(self) -> None:
        """Batches of different columns: each is a stream of its own, one behind the other."""
        if self._path is None:
            handle, name = tempfile.mkstemp(prefix="apd-rows-", dir=self.directory)
            os.close(handle)
            self._path = Path(name)
        with pa.OSFile(str(self._path), "ab") as file:
            for batch in self._batches:
                with pa.ipc.new_stream(file, batch.schema) as writer:
                    writer.write_batch(batch)
                self._in_file += 1
        self._batches, self._bytes = [], 0

    def finish(self, *, to_file: bool = False) -> None:
        """No more rows. `to_file`: none may stay in memory."""
        if self._batches and (to_file or self._in_file):
            self._spill()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows of a finished spool, in the order in which they came. May be called again."""
        for batch, fixed in zip(self._kept(), self._fixed, strict=True):
            columns = [batch.column(f.name) if f.name in batch.schema.names else repeated(fixed.get(f.name), f.type, batch.num_rows) for f in self.schema]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _kept(self) -> Iterator[pa.RecordBatch]:
        if self._path is not None:
            with pa.OSFile(str(self._path)) as file:
                for _ in range(self._in_file):
                    with pa.ipc.open_stream(file) as reader:
                        yield from reader
        yield from self._batches

    def close(self) -> None:
        self._batches = []
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def repeated(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    """A column of one value, or of none."""
    return _repeated(value, kind, 1 << max(rows - 1, 0).bit_length()).slice(0, rows)  # few lengths, so that it was made before


@lru_cache(maxsize=256)
def _repeated(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    if value is None:
        return pa.nulls(rows, kind)
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows), pa.array([value]))
    return pa.repeat(pa.scalar(value, kind), rows)
