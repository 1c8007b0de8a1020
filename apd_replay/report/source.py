"""What the report reads: results/apd.duckdb, opened read-only, through the SQL files in queries/; the seed documents' errata from claims.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apd_replay.claims import rules
from apd_replay.errors import InputError
from apd_replay.warehouse import database

Row = dict[str, Any]
_RUNS = """
SELECT runs.*, coalesce(disaggregated, false) AS disaggregated
FROM runs LEFT JOIN (SELECT experiment, replicate, bool_or(path <> 'dp') AS disaggregated FROM requests GROUP BY ALL) USING (experiment, replicate)
"""
_QUERIES = Path(__file__).with_name("queries")


@dataclass(frozen=True, order=True)
class Group:
    """The runs that may be compared: one engine, one trace. No figure shows two of them."""

    engine: str
    trace: str


class Source:
    """The results folder as rows. Use as a context manager."""

    def __init__(self, results: Path, config_dir: Path) -> None:
        self.results = results
        self.errata = rules.load(config_dir).errata
        self._connection = database.open_read_only(results)
        self._connection.execute("SET threads = 1")  # sums of floats in one order: the same bytes every time
        self.runs = self.sql(_RUNS)
        self.runs.sort(key=lambda r: (natural(r["experiment"]), r["replicate"]))
        self.evidence = self._claims("evidence")
        self.verdicts = self._claims("verdicts")

    def sql(self, text: str, **parameters: Any) -> list[Row]:
        cursor = self._connection.execute(text, parameters or None)
        names = [d[0] for d in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def query(self, name: str, **parameters: Any) -> list[Row]:
        """Rows of queries/{name}.sql."""
        return self.sql(query_text(name), **parameters)

    def _claims(self, table: str) -> list[Row]:
        """What `apd claims` wrote: its own file, since the database may be older."""
        file = self.results / "claims" / f"{table}.parquet"
        if not file.is_file():
            raise InputError(file, "no such file", remedy=f"apd claims --results {self.results} makes it")
        return self.sql("SELECT * FROM read_parquet($file) ORDER BY ALL", file=f"claims/{table}.parquet")

    def groups(self) -> list[Group]:
        """Real runs first, then imported ones, then simulated ones."""
        found = {Group(r["engine"], r["trace"] or "") for r in self.runs} | {Group(v["engine"], v["trace"]) for v in self.verdicts}
        order = {"sglang": 0, "imported": 1, "emulator": 2, "sim": 3}
        return sorted(found, key=lambda g: (order.get(g.engine, 4), g))

    def runs_of(self, group: Group) -> list[Row]:
        return [r for r in self.runs if (r["engine"], r["trace"] or "") == (group.engine, group.trace)]

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def query_text(name: str) -> str:
    return (_QUERIES / f"{name}.sql").read_text(encoding="utf-8")


def natural(text: str | None) -> tuple[Any, ...]:
    """A sort key that puts `decode-10` behind `decode-2`."""
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.split(r"(\d+)", text or "") if part)


def ordered(names: Iterable[str]) -> list[str]:
    return sorted(set(names), key=natural)
