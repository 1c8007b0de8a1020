"""A results folder of a few rows, to ask a claim's SQL about."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from apd_replay import schemas
from apd_replay.claims.evidence import Row, gather
from apd_replay.logs.records import table_path, write_table
from apd_replay.warehouse import database

Rows = list[dict[str, Any]]


class World:
    """Runs and rows to be, and what the claims say about them."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.runs: dict[tuple[str, int], dict[str, Any]] = {}

    def run(self, experiment: str = "E0", replicate: int = 1, *, requests: Rows = (), events: Rows = (), samples: Rows = (), transfers: Rows = (),
            admissions: Rows = (), pauses: Rows = (), **facts: Any) -> None:  # type: ignore[assignment]
        """Add a run; rows need only what the test is about."""
        self.runs[experiment, replicate] = facts
        defaults = {"prefill_worker": "prefill-0", "decode_worker": "decode-0", "path": "seed", "scheduled_t": 0.0, "dispatched_t": 0.0, "first_token_t": 1.0,
                    "finished_t": 2.0, "input_tokens": 100, "output_tokens": 11, "admission": "none", "status": "ok", "turn": 0, "session": "a"}  # fmt: skip
        requests = [{**defaults, "request_id": f"r{k}", **r} for k, r in enumerate(requests)]
        for r in requests:
            if r["status"] == "error":
                r["first_token_t"] = None
        line = {"file": "f", "line": 1, "offset": 0, "launch": 0, "t": 1.0}
        given = {
            "requests": requests, "worker_events": [{**line, **e} for e in events], "worker_samples": [{**line, "kind": "decode", **s} for s in samples],
            "transfers": list(transfers), "admissions": [{"ts": 0.0, "t": 0.0, "session": "a", "can_admit": True, **a} for a in admissions],
            "pauses": [{"ts": 0.0, "t": 0.0, **p} for p in pauses],
        }  # fmt: skip
        for table in schemas.TABLES.values():
            if table.per_run:
                rows = [{"experiment": experiment, "replicate": replicate, **row} for row in given.get(table.name, [])]
                write_table(pa.Table.from_pylist(rows, schema=schemas.arrow(table)), table_path(self.results / "tables", table.name, experiment, replicate))
        manifest = {"experiment": experiment, "replicate": replicate, "run_id": f"{experiment}-{replicate}", "engine": "sim", "status": "complete", "trace": "t",
                    "time_scale": 10, "seed": replicate, "duration_s": 100.0, "cluster": "2p6d", "model": "m", "config": {}, **facts}  # fmt: skip
        file = self.results / "runs" / experiment / f"r{replicate}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(manifest))

    def turns(self, rows: Rows, trace: str = "t") -> None:
        defaults = {"trace": trace, "arrival_s": 0.0, "input_tokens": 100, "output_tokens": 10, "gap_kind": "think"}
        schema = schemas.arrow(schemas.TURNS)
        write_table(pa.Table.from_pylist([{**defaults, **r} for r in rows], schema=schema), self.results / "traces" / f"{trace}.parquet")

    def evidence(self, claim: str) -> list[Row]:
        with database.connect(self.results) as connection:
            return gather(connection, claim)

    def figures(self, claim: str, *metrics: str) -> Rows:
        """The claim's evidence as plain dictionaries: metric, experiment, replicate, scope, value."""
        names = ("metric", "experiment", "replicate", "scope", "value")
        return [{n: getattr(row, n) for n in names} for row in self.evidence(claim) if not metrics or row.metric in metrics]

    def value(self, claim: str, metric: str, replicate: int | None = 1, scope: str | None = None, experiment: str = "E0") -> float | None:
        found = [r.value for r in self.evidence(claim) if (r.metric, r.replicate, r.scope, r.experiment) == (metric, replicate, scope, experiment)]
        assert len(found) <= 1
        return found[0] if found else None


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


Make = Callable[..., World]
