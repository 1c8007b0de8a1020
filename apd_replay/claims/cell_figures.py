"""The figures of one experiment's replicates, straight from the rows that the replays left: what a large grid of runs is compared by."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from apd_replay import schemas
from apd_replay.configuration import Experiment

_QUERY = Path(__file__).with_suffix(".sql")


def measure(experiment: Experiment, runs: Mapping[int, Path]) -> pa.Table:
    """One row a replicate: the experiment's place in the grid, then its figures (seconds, tokens a second). `runs`: replicate -> run directory."""
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")  # sums of floats in one order: the same bytes every time
        columns = {c.name: c.type for c in schemas.REQUESTS.columns}
        parts = [f"SELECT {n} AS replicate, * FROM read_json({_quoted(run / 'requests.jsonl')}, format = 'newline_delimited', columns = {columns})"
                 for n, run in sorted(runs.items())]  # fmt: skip
        connection.execute(f"CREATE VIEW requests AS {' UNION ALL '.join(parts)}")
        found = connection.execute(_QUERY.read_text(encoding="utf-8"), {"warmup_turns": experiment["warmup_turns"]})
        names = [d[0] for d in found.description or ()]
        figures = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    rows = []
    for row in figures:
        run = runs[row["replicate"]]
        manifest = json.loads((run / "run.json").read_text(encoding="utf-8"))
        rows.append({**_place(experiment), "run_id": run.name, "trace": manifest["trace"], **row, "duration_s": manifest["duration_s"],
                     "throughput": row["answered_tokens"] / manifest["duration_s"]})  # fmt: skip
    return pa.Table.from_pylist(rows)


def write(table: pa.Table, file: Path) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        pq.write_table(table, draft, compression="zstd")
        os.replace(draft, file)
    finally:
        draft.unlink(missing_ok=True)


def _place(experiment: Experiment) -> dict[str, Any]:
    return {"experiment": experiment.id, "design": experiment.base.split(".")[0], "title": experiment["title"], "engine": experiment["engine"],
            "time_scale": float(experiment["time_scale"]), "concurrency": experiment["concurrency"], "kv_pool_scale": float(experiment["kv_pool_scale"]),
            "hardware": experiment["hardware"], "hardware_scale": json.dumps(experiment["hardware_scale"], sort_keys=True), "resident": experiment["resident"]}  # fmt: skip


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
