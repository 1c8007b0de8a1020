"""results/ as a database: runs, evidence and verdicts as tables, the bulk tables as views over Parquet, macros.

Only the runs that a manifest under runs/ names are in it: the views list their files one by one and never look at what else
lies in the folder. Paths are relative to results/, so that the folder can be moved (`file_search_path`, SNAKEMAKE.md 5).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from apd_replay import schemas
from apd_replay.errors import ApdError, InputError
from apd_replay.replay import store

FILE = "apd.duckdb"
STORAGE_VERSION = "v1.4.0"  # the newest that the DuckDB command line on PyPI can open
CLAIM_TABLES = (schemas.EVIDENCE, schemas.VERDICTS)

CATALOG = """\
-- Opens the database in DuckDB's command line: cd RESULTS; duckdb -init catalog.sql
ATTACH 'apd.duckdb' AS apd (READ_ONLY);
USE apd;
"""


def connect(results: Path) -> duckdb.DuckDBPyConnection:
    """A database in memory over `results` as it is now: runs, views, macros."""
    connection = duckdb.connect()
    _find_files_in(connection, results)
    _fill(connection, results, {})
    return connection


def build(results: Path, decided: Mapping[str, pa.Table] | None = None) -> Path:
    """Write `results`/apd.duckdb anew, whole or not at all, and catalog.sql beside it. Readers of the old file keep it.

    `decided`: the tables `evidence` and `verdicts` of these very runs; without them both are empty, since older ones may be of other runs.
    """
    results.mkdir(parents=True, exist_ok=True)
    draft = results / f".{FILE}.{os.getpid()}"
    try:
        with duckdb.connect() as connection:
            _find_files_in(connection, results)
            connection.execute(f"ATTACH {_quoted(str(draft))} AS apd (STORAGE_VERSION '{STORAGE_VERSION}')")
            connection.execute("USE apd")
            _fill(connection, results, decided or {})
            connection.execute("USE memory")
            connection.execute("DETACH apd")
        os.replace(draft, results / FILE)
    except (duckdb.IOException, duckdb.FatalException) as error:  # a full disk, a read-only folder
        raise ApdError(str(error).splitlines()[0]) from None
    finally:
        draft.unlink(missing_ok=True)
        draft.with_name(draft.name + ".wal").unlink(missing_ok=True)
    write_text(results / "catalog.sql", CATALOG)
    return results / FILE


def open_read_only(results: Path) -> duckdb.DuckDBPyConnection:
    """The database of `results`, for reading, from wherever the process runs."""
    file = results / FILE
    if not file.is_file():
        raise InputError(file, "no such file", remedy=f"apd warehouse --results {results} makes it")
    try:
        connection = duckdb.connect(str(file), read_only=True)
    except duckdb.Error as error:
        raise InputError(file, f"cannot be opened: {str(error).splitlines()[0]}") from None
    _find_files_in(connection, results)
    return connection


def write_text(path: Path, text: str) -> None:
    """One text file, whole or absent."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _find_files_in(connection: duckdb.DuckDBPyConnection, results: Path) -> None:
    connection.execute(f"SET file_search_path = {_quoted(str(results.resolve()))}")


def _fill(connection: duckdb.DuckDBPyConnection, results: Path, decided: Mapping[str, pa.Table]) -> None:
    runs = [_run_row(m) for m in store.manifests(results)]
    _table(connection, schemas.RUNS, pa.Table.from_pylist(runs, schema=schemas.arrow(schemas.RUNS)))
    traces = dict.fromkeys(r["trace"] for r in runs if r["trace"])
    found = [f"traces/{t}.parquet" for t in traces if (results / f"traces/{t}.parquet").is_file()]
    _view(connection, schemas.TURNS, "turns", found)
    for table in schemas.TABLES.values():
        if table.per_run:
            name = "all_requests" if table is schemas.REQUESTS else table.name
            _view(connection, table, name, [_part(results, table, run) for run in runs])
    for name in ("views.sql", "macros.sql"):
        connection.execute((files("apd_replay.warehouse") / "sql" / name).read_text(encoding="utf-8"))
    for table in CLAIM_TABLES:
        _table(connection, table, decided.get(table.name, schemas.arrow(table).empty_table()))


def _run_row(manifest: dict[str, Any]) -> dict[str, Any]:
    row = {name: manifest.get(name) for name in schemas.RUNS.names}
    for key in ("versions", "config"):
        row[key] = None if row[key] is None else row[key] if isinstance(row[key], str) else json.dumps(row[key], sort_keys=True)
    return row


def _part(results: Path, table: schemas.Table, run: dict[str, Any]) -> str:
    path = f"tables/{table.name}/experiment={run['experiment']}/replicate={run['replicate']}/part-0.parquet"
    if not (results / path).is_file():
        remedy = f"apd parse --run {results}/runs/{run['experiment']}/r{run['replicate']}.json --out {results}/tables"
        raise ApdError(f"{results / path}: no such file, but {results}/runs/{run['experiment']}/r{run['replicate']}.json names the run; {remedy} makes it")
    return path


def _table(connection: duckdb.DuckDBPyConnection, table: schemas.Table, rows: pa.Table) -> None:
    columns = ", ".join(f'"{c.name}" {c.type}{"" if c.null else " NOT NULL"}' for c in table.columns)
    connection.execute(f"CREATE TABLE {table.name} ({columns})")
    connection.register("rows_to_insert", rows)
    connection.execute(f"INSERT INTO {table.name} BY NAME SELECT * FROM rows_to_insert")
    connection.unregister("rows_to_insert")


def _view(connection: duckdb.DuckDBPyConnection, table: schemas.Table, name: str, paths: list[str]) -> None:
    """A view over these files; without any, one of the same columns and no row."""
    if paths:
        source = f"read_parquet([{', '.join(map(_quoted, paths))}], hive_partitioning = false)"
        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {source}")
        return
    columns = (schemas.RUN_KEY if table.per_run else ()) + table.columns
    nothing = ", ".join(f'NULL::{c.type} AS "{c.name}"' for c in columns)
    connection.execute(f"CREATE VIEW {name} AS SELECT {nothing} WHERE false")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
