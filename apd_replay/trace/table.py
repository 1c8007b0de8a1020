"""The `turns` Parquet: a trace as a table (schemas.TURNS), one row a turn, sessions one after the other."""

from __future__ import annotations

import os
from itertools import groupby
from pathlib import Path

from apd_replay import schemas
from apd_replay.errors import InputError
from apd_replay.trace.assembly import digest
from apd_replay.trace.model import Session, Trace, Turn

ROWS_A_GROUP = 16_384
ROWS_AT_ONCE = 2_048  # a group as Python's own objects takes several times its size


def write(trace: Trace, path: Path) -> None:
    """Write the whole table, or nothing: a temporary file takes the name once it is complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    turns = [t for s in trace.sessions for t in s.turns]
    schema = schemas.arrow(schemas.TURNS)
    columns = {"trace": [trace.name] * len(turns)} | {n: [getattr(t, n) for t in turns] for n in schemas.TURNS.names if n != "trace"}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        pq.write_table(pa.table(columns, schema=schema), temporary, compression="zstd", row_group_size=ROWS_A_GROUP)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path) -> Trace:
    """The trace of a turns Parquet, with the digest of what is in it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:  # read_table would load Arrow's datasets too: 50 MB
            missing = [n for n in schemas.TURNS.names if n not in file.schema_arrow.names]
            if missing:
                raise InputError(path, f"no turns table: column {missing[0]} is missing", remedy="write it with `apd trace convert`")
            name, turns = "", []
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=schemas.TURNS.names, use_threads=False):  # a column a thread holds more
                columns = {n: batch.column(n).to_pylist() for n in schemas.TURNS.names}
                columns["hash_ids"] = [None if ids is None else tuple(ids) for ids in columns["hash_ids"]]
                name = columns.pop("trace")[0]
                turns += [Turn(*values) for values in zip(*columns.values(), strict=True)]
    except (OSError, pa.ArrowException) as error:
        raise InputError(path, f"not a readable Parquet file: {str(error).splitlines()[0]}") from None
    if not turns:
        raise InputError(path, "holds no requests")
    sessions = tuple(Session(id_, tuple(members)) for id_, members in groupby(turns, key=lambda t: t.session))
    _check_order(path, sessions)
    return Trace(name, digest(sessions), sessions)


def _check_order(path: Path, sessions: tuple[Session, ...]) -> None:
    if len({s.id for s in sessions}) < len(sessions) or any(t.turn != k for s in sessions for k, t in enumerate(s.turns)):
        raise InputError(path, "rows are not in order: a session's turns must follow each other from 0", remedy="write it with `apd trace convert`")
