"""The JSON Lines that a replay wrote become tables: requests, admissions, pauses, bindings (CONTRACT, "Layout").

Arrow's own JSON reader does the work; only a file that it refuses is read a second time, line by line, to say where it is wrong.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

from apd_replay import schemas
from apd_replay.errors import InputError

_BLOCK_BYTES = 16 << 20  # a line must fit in a block


@dataclass(frozen=True)
class _File:
    """A file of a run directory. `keys` maps its JSON keys to columns where they differ; a missing file is an empty one unless `required`."""

    path: str
    table: schemas.Table
    keys: dict[str, str] = field(default_factory=dict)
    allowed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    required: bool = False


FILES = (
    _File("requests.jsonl", schemas.REQUESTS, required=True,
          allowed={"path": schemas.PATHS, "status": schemas.STATUSES, "admission": ("admitted", "rejected", "none"), "error_kind": schemas.ERROR_KINDS}),
    _File("structural/admission-events.jsonl", schemas.ADMISSIONS, {"timestamp": "ts", "D": "decode_worker"}),
    _File("structural/backpressure-events.jsonl", schemas.PAUSES, {"timestamp": "ts", "D": "decode_worker"}),
    _File("structural/session-d-binding.jsonl", schemas.BINDINGS, {"timestamp": "ts", "D": "decode_worker", "turn_id": "turn"}),
)  # fmt: skip


def write_record_tables(run_dir: Path, out_root: Path, experiment: str, replicate: int, started_ts: float | None) -> list[str]:
    """Write the four tables under `out_root`/{table}/experiment=.../replicate=.../part-0.parquet, also where they are empty.

    `started_ts`: UTC epoch of the run's t = 0; null times where nobody knows it. Returns one sentence for each file whose last line was cut (a killed run): the rows before
    it count. Any other line that cannot be read raises InputError with file, line and column, and nothing is written.
    """
    notices: list[str] = []
    tables = {}
    for file in FILES:
        rows = _read(Path(run_dir) / file.path, file, notices)
        tables[file.table.name] = _complete(rows, file, experiment, replicate, started_ts)
    for name, table in tables.items():
        write_table(table, table_path(out_root, name, experiment, replicate))
    return notices


def table_path(out_root: Path, table: str, experiment: str, replicate: int) -> Path:
    return Path(out_root) / table / f"experiment={experiment}" / f"replicate={replicate}" / "part-0.parquet"


def write_table(table: pa.Table, path: Path) -> None:
    """One Parquet file, whole or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        pq.write_table(table, part, compression="zstd")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _read(path: Path, file: _File, notices: list[str]) -> pa.Table:
    schema = _json_schema(file)
    if not path.is_file():
        if file.required:
            raise InputError(path, "is missing", remedy="a run directory has one line a request in requests.jsonl")
        return schema.empty_table()
    source = _whole_lines(path, notices)
    if source is not None and source.size == 0:
        return schema.empty_table()
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        rows = pj.read_json(source if source is not None else str(path), pj.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES), options)
    except pa.ArrowInvalid:
        return _line_by_line(path, file, schema, source)
    return rows if _sound(rows, file) else _line_by_line(path, file, schema, source)


def _sound(rows: pa.Table, file: _File) -> bool:
    """What Arrow lets pass: nulls where a value must be, words outside the contract, NaN and infinity."""
    return (
        not any(rows[c.name].null_count for c in rows.schema if not c.nullable)
        and all(_all(pc.is_in(rows[key].drop_null(), pa.array(allowed))) for key, allowed in file.allowed.items())
        and all(_all(pc.is_finite(rows[c.name])) for c in rows.schema if c.type == pa.float64())
    )


def _all(column: pa.ChunkedArray) -> bool:
    return pc.all(column).as_py() is not False  # None: no row


def _whole_lines(path: Path, notices: list[str]) -> pa.BufferReader | None:
    """None where the file ends as it should; else its content without the cut last line, which is put on record."""
    size = path.stat().st_size
    if size == 0:
        return pa.BufferReader(b"")
    with open(path, "rb") as handle:
        handle.seek(-1, os.SEEK_END)
        if handle.read(1) == b"\n":
            return None
        handle.seek(0)
        content = handle.read()
    head, _, tail = content.rpartition(b"\n")
    try:
        json.loads(tail)
        return None  # only the last newline is missing
    except ValueError:
        lines = head.count(b"\n") + bool(head)
        notices.append(f"{path}:{lines + 1}: the last line is cut; the {lines} before it count")
        return pa.BufferReader(head)


def _json_schema(file: _File) -> pa.Schema:
    names = {column: key for key, column in file.keys.items()}
    columns = [f for f in schemas.arrow(file.table) if f.name not in ("experiment", "replicate")]
    if file.keys:
        columns = [f for f in columns if f.name != "t"]  # worked out from the timestamp
    return pa.schema([f.with_name(names.get(f.name, f.name)) for f in columns])


def _complete(rows: pa.Table, file: _File, experiment: str, replicate: int, started_ts: float | None) -> pa.Table:
    """The table in the contract's names, order and types."""
    columns: dict[str, Any] = {file.keys.get(name, name): rows[name] for name in rows.column_names}
    if "ts" in columns:
        columns["t"] = pc.round(pc.subtract(columns["ts"], pa.scalar(started_ts, pa.float64())), 6)
    if file.table is schemas.REQUESTS:
        columns["error_message"] = pc.utf8_slice_codeunits(columns["error_message"], 0, 500)
    columns["experiment"] = pa.repeat(pa.scalar(experiment), rows.num_rows)
    columns["replicate"] = pa.repeat(pa.scalar(replicate, pa.int32()), rows.num_rows)
    schema = schemas.arrow(file.table)
    return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


# the slow way, for a file that the fast reader refused --------------------------------------------------------------


def _line_by_line(path: Path, file: _File, schema: pa.Schema, source: pa.BufferReader | None) -> pa.Table:
    """The same rows by plain Python; raises InputError at the first line that is wrong."""
    if source is not None:
        source.seek(0)
    content = source.read() if source is not None else path.read_bytes()
    rows = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise InputError(path, f"not valid JSON ({error})", line=number, remedy="expected one JSON object a line") from None
        if not isinstance(row, dict):
            raise InputError(path, "not a JSON object", line=number, remedy="expected one JSON object a line")
        for column in schema:
            _check(path, number, column, row.get(column.name))
        for key, allowed in file.allowed.items():
            if row.get(key) is not None and row[key] not in allowed:
                raise InputError(path, f"{row[key]!r} is not allowed", line=number, column=key, remedy=f"allowed: {', '.join(allowed)}")
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=schema)


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


_KINDS: dict[pa.DataType, tuple[str, tuple[type, ...], int]] = {
    pa.string(): ("text", (str,), 0), pa.bool_(): ("true or false", (bool,), 0), pa.float64(): ("a number", (int, float), 0),
    pa.int32(): ("a whole number below 2^31", (int,), 1 << 31), pa.int64(): ("a whole number below 2^63", (int,), 1 << 63),
}  # fmt: skip


def _check(path: Path, number: int, column: pa.Field, value: Any) -> None:
    expected, kinds, bound = _KINDS[column.type]
    if value is None:
        if not column.nullable:
            raise InputError(path, "is missing", line=number, column=column.name, remedy=f"expected {expected}")
        return
    wrong = not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)
    if wrong or (bound and isinstance(value, int) and not -bound <= value < bound):
        raise InputError(path, f"{json.dumps(value)[:60]} is not {expected}", line=number, column=column.name)
