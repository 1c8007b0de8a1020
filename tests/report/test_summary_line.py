"""The report's first lines: what ran, and how much of it to its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from apd_replay.report.provenance import summary


def test_runs_that_did_not_end_are_counted_by_experiment() -> None:
    def run(experiment: str, replicate: int, status: str) -> dict[str, Any]:
        return {"experiment": experiment, "replicate": replicate, "status": status, "requests": 10, "errors": 1}

    runs = [run("E0", 1, "complete"), run("E0", 2, "truncated"), run("E2", 1, "truncated"), run("E2", 2, "truncated"), run("E2", 3, "crashed")]
    group = SimpleNamespace(engine="sim", trace="t")
    source: Any = SimpleNamespace(groups=lambda: [group], runs_of=lambda _: runs)
    assert summary(source) == [
        ("sim", "trace t: 5 runs of 2 experiments (E0, E2); 50 requests, 5 of them failed; not complete: 1 of 2 runs of E0 truncated, 2 of 3 runs of E2 truncated, 1 of 3 runs of E2 crashed")
    ]
