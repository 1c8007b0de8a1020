"""results/claims/: evidence and verdicts as Parquet, verdicts as CSV and Markdown too."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from apd_replay import schemas
from apd_replay.claims.deciding import Decided
from apd_replay.logs.records import write_table
from apd_replay.warehouse.database import write_text


def tables(decided: Decided) -> dict[str, pa.Table]:
    return {
        "evidence": pa.Table.from_pylist([asdict(row) for row in decided.evidence], schema=schemas.arrow(schemas.EVIDENCE)),
        "verdicts": pa.Table.from_pylist(decided.verdicts, schema=schemas.arrow(schemas.VERDICTS)),
    }


def write(decided: Decided, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables(decided).items():
        write_table(table, folder / f"{name}.parquet")
    write_text(folder / "verdicts.csv", _csv(decided.verdicts))
    write_text(folder / "verdicts.md", markdown(decided.verdicts))


def markdown(verdicts: list[dict[str, Any]]) -> str:
    """The verdict table, one a row of it per engine and trace."""
    lines = []
    for engine, trace in dict.fromkeys((v["engine"], v["trace"]) for v in verdicts):
        lines += [f"## Engine {_cell(engine)}, trace {_cell(trace)}", "", "| claim | statement | verdict | N | effect | notes |", "| --- | --- | --- | --- | --- | --- |"]
        for v in verdicts:
            if (v["engine"], v["trace"]) == (engine, trace):
                word = v["verdict"] + (f", leaning: {v['leaning']}" if v["leaning"] else "")
                lines.append("| " + " | ".join(map(_cell, [v["claim"], v["statement"], word, v["n"], effect(v), v["notes"]])) + " |")
        lines.append("")
    return "\n".join(lines)


def effect(v: dict[str, Any]) -> str:
    """`2.31 (95 % interval 1.9 to 2.8) KVC / DP`."""
    if v["effect"] is None:
        return ""
    interval = "" if v["effect_low"] is None else f" (95 % interval {number(v['effect_low'])} to {number(v['effect_high'])})"
    return f"{number(v['effect'])}{interval} {v['unit'] or ''}".strip()


def number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def _cell(value: Any) -> str:
    return "" if value is None else " ".join(str(value).split()).replace("|", "\\|")


def _csv(verdicts: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(schemas.VERDICTS.names)
    for v in verdicts:
        writer.writerow(["; ".join(x) if isinstance(x, list) else x for x in (v[name] for name in schemas.VERDICTS.names)])
    return out.getvalue()
