"""Ad-hoc SQL on results/, read-only, and its answer as a table, CSV, JSON or Parquet."""

from __future__ import annotations

import io
import json
import math
import unicodedata
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from apd_replay.errors import ApdError, printable
from apd_replay.warehouse import database

_WIDEST = 80  # characters of a cell in a printed table


def ask(results: Path, query: str) -> pa.Table:
    """The answer to `query`; an ApdError with DuckDB's message, in one line, where it cannot be answered."""
    connection = database.open_read_only(results)
    try:
        answer = connection.sql(query)
        return pa.table({"done": pa.array([True])}) if answer is None else answer.to_arrow_table()
    except duckdb.Error as error:
        raise ApdError(f"sql: {' '.join(str(error).split())}") from None
    finally:
        connection.close()


def render(answer: pa.Table, form: str) -> bytes:
    """`form`: table, csv, json (one array of objects) or parquet."""
    if form == "parquet":
        sink = io.BytesIO()
        pq.write_table(answer, sink, compression="zstd")
        return sink.getvalue()
    if form == "csv":
        from pyarrow import csv

        sink = io.BytesIO()
        csv.write_csv(_flat(answer), sink)
        return sink.getvalue()
    if form == "json":
        rows = [{k: _plain(v) for k, v in row.items()} for row in answer.to_pylist()]
        return (json.dumps(rows, ensure_ascii=False, default=str) + "\n").encode()
    return as_text(answer).encode()


def as_text(answer: pa.Table) -> str:
    """An aligned table for a terminal. Control characters are escaped: text from a trace or a log must not drive it."""
    numeric = [pa.types.is_integer(f.type) or pa.types.is_floating(f.type) or pa.types.is_decimal(f.type) for f in answer.schema]
    rows = [[printable(name) for name in answer.column_names], *([_cell(v) for v in row.values()] for row in answer.to_pylist())]
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)] if answer.num_columns else []
    lines = ["  ".join(_padded(c, w, right) for c, w, right in zip(row, widths, numeric, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * w for w in widths))
    noun = "row" if answer.num_rows == 1 else "rows"
    return "\n".join([*lines, f"({answer.num_rows} {noun})", ""])


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = printable(value if isinstance(value, str) else json.dumps(_plain(value), ensure_ascii=False, default=str) if isinstance(value, (list, dict)) else str(value))
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _padded(text: str, width: int, right: bool) -> str:
    fill = " " * (width - _width(text))
    return fill + text if right else text + fill


def _plain(value: Any) -> Any:
    """JSON has no infinity: it becomes text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value


def _flat(answer: pa.Table) -> pa.Table:
    """CSV has no lists: they become JSON text."""
    for i, column in enumerate(answer.schema):
        if pa.types.is_nested(column.type):
            text = [None if v is None else json.dumps(_plain(v), ensure_ascii=False, default=str) for v in answer.column(i).to_pylist()]
            answer = answer.set_column(i, column.name, pa.array(text, pa.string()))
    return answer
