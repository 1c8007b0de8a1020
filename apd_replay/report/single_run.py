"""What the figures of a single run share: its key, its subtitle, its rows, its place in the store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from apd_replay.report.charts import Heading
from apd_replay.report.model import Figure, Table, stem
from apd_replay.report.numbers import plain
from apd_replay.report.source import Row, query_text

MOST_ROWS = 400


def store_href(run: Row, file: str) -> str:
    """Where a file of a stored run lies, from results/report/."""
    return quote(f"../store/{run['run_id']}/{file}")


def run_key(run: Row) -> dict[str, Any]:
    return {"experiment": run["experiment"], "replicate": run["replicate"]}


def run_heading(title: str, run: Row, *more: str) -> Heading:
    return Heading(
        title,
        " · ".join(
            [run["experiment"], f"replicate {run['replicate']} (one run)", f"engine {run['engine']}", f"trace {run['trace']}", *more]
        ),
    )


def run_figure(run: Row, name: str, title: str, note: str, picture: str, table: Table, query: str = "") -> Figure:
    return Figure(stem(name, run["experiment"], run["engine"], run["trace"] or ""), run["engine"], title, note, picture, table, query)


def run_table(caption: str, columns: Sequence[str], rows: Sequence[Row], engine: str) -> Table:
    shown = rows[:MOST_ROWS]
    more = "" if len(shown) == len(rows) else f"; the first {len(shown):,} are shown, the query below gives all"
    return Table(caption + more, columns, [[r[c] for c in columns] for r in shown], engine=engine)


def run_query(name: str, run: Row) -> str:
    """The query with its parameters filled in, to be given to `apd sql`."""
    text = query_text(name)
    quoted = "'" + plain(run["experiment"]).replace("'", "''") + "'"
    return text.replace("$experiment", quoted).replace("$replicate", json.dumps(run["replicate"])).strip()
