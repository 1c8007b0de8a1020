"""The remedies' section: figures that a test makes up, so that every answer is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from apd_replay.report import remedies
from apd_replay.report.model import Block, Facts, Figure, Table

METRICS = [m for m, _ in remedies.BOUGHT]


def row(experiment: str, replicate: int, seconds: float, *, cell: remedies.Cell = remedies.SEED_CELL, starved: float = 0, errors: int = 0, scaled: str = "{}") -> dict[str, Any]:
    """Every time of the run is `seconds`, a little longer from replicate to replicate."""
    s, c, k = cell
    return {"experiment": experiment, "design": experiment.split("@")[0].split(".")[0], "title": f"title of {experiment}", "engine": "sim", "trace": "t",
            "time_scale": s, "concurrency": c, "kv_pool_scale": k, "hardware_scale": scaled, "replicate": replicate, "errors": errors, "starved_sessions": starved,
            "direct_rate": 0.5, "throughput": 100.0, "duration_s": 9.0, **dict.fromkeys(METRICS, seconds * (1 + replicate / 100))}  # fmt: skip


def seed_cell() -> list[dict[str, Any]]:
    designs = {"E0": (10.0, 30), "E6": (5.0, 0), "F1": (9.0, 28), "F2": (6.0, 2), "F1+F2": (5.5, 1), "all": (4.0, 0)}
    return [row(d, n, seconds + 0.01 * n, starved=starved + n % 2) for d, (seconds, starved) in designs.items() for n in (1, 2, 3)]


def write(results: Path, rows: list[dict[str, Any]]) -> Path:
    (results / "figures").mkdir(parents=True)
    for name in {r["experiment"] for r in rows}:
        pq.write_table(pa.Table.from_pylist([r for r in rows if r["experiment"] == name]), results / "figures" / f"{name}.parquet")
    return results


def blocks(tmp_path: Path, rows: list[dict[str, Any]]) -> list[Block]:
    [section] = remedies.sections(write(tmp_path, rows))
    return section.blocks


def answers(found: list[Block]) -> dict[str, str]:
    return dict(next(b for b in found if isinstance(b, Facts)).rows)


def table(found: list[Block], start: str) -> dict[str, dict[str, Any]]:
    [t] = [b for b in found if isinstance(b, Table) and b.caption.startswith(start)]
    return {str(r[0]): dict(zip(t.columns, r, strict=True)) for r in t.rows}


def test_a_folder_without_a_grid_has_no_section(tmp_path: Path) -> None:
    assert remedies.sections(tmp_path) == []


def test_the_winner_is_named_with_its_ratios(tmp_path: Path) -> None:
    said = answers(blocks(tmp_path, seed_cell()))
    assert said["Can KVC win?"].startswith("Yes: 1 of 4 designs") and "mean response is all: mean latency 0.80" in said["Can KVC win?"]
    assert said["Which single remedy first?"].startswith("F2: mean response 0.60") and "clearly ahead of F1" in said["Which single remedy first?"]
    assert "E0 starves 30.7 sessions a run, F1+F2 1.67" in said["What removes starvation (s1)?"]
    assert said["What removes starvation (s1)?"].endswith("Alone, F2 at least halves it.")


def test_a_design_with_errors_is_no_winner(tmp_path: Path) -> None:
    rows = [{**r, "errors": 1} if r["design"] == "all" else r for r in seed_cell()]
    assert answers(blocks(tmp_path, rows))["Can KVC win?"].startswith("No design here has zero errors")


def test_a_failed_half_is_infinite_and_has_no_interval(tmp_path: Path) -> None:
    rows = [{**r, "response_p99": float("inf")} if r["design"] == "F1" else r for r in seed_cell()]
    assert table(blocks(tmp_path, rows), "What each remedy buys")["F1"]["response P99"] == "∞"


def test_which_claims_a_remedy_removes(tmp_path: Path) -> None:
    found = table(blocks(tmp_path, seed_cell()), "Which claims each removes")
    assert [found[d]["s1: starvation at least halved"] for d in ("F1", "F2", "all")] == ["no", "yes", "yes"]
    assert [found[d]["headline: KVC no longer slower than DP-CA"] for d in ("F1", "F2", "all")] == ["no", "no", "yes"]
    assert found["F1"]["s2, s3, s5: errors"].startswith("none to remove")


def test_the_map_says_where_kvc_wins(tmp_path: Path) -> None:
    light = (10.0, 4, 1.0)
    rows = seed_cell() + [row(f"{d}.S10.C4.K1", n, seconds + 0.01 * n, cell=light) for d, seconds in (("E0", 2.0), ("E6", 3.0)) for n in (1, 2)]
    [picture] = [b for b in blocks(tmp_path, rows) if isinstance(b, Figure)]
    assert picture.name == "remedies-map-E0-t" and picture.engine == "sim"
    assert picture.note == "KVC (E0) beats DP-CA in 1 of 2 cells, the interval clear of 1."
    assert [(r[1], round(r[3], 2), r[-1]) for r in picture.table.rows] == [(4, 0.67, "better"), (32, 2.0, "worse")]


def test_the_time_scale_answer_compares_the_two_ratios(tmp_path: Path) -> None:
    slow = (1.0, 32, 1.0)
    rows = seed_cell() + [row(f"{d}.S1.C32.K1", n, seconds + 0.01 * n, cell=slow) for d, seconds in (("E0", 2.0), ("E6", 3.0)) for n in (1, 2, 3)]
    said = answers(blocks(tmp_path, rows))["Does the verdict change with the time-scale (s7)?"]
    assert "2.00 [" in said and "0.67" in said and said.endswith("the verdict changes")


@pytest.mark.parametrize(("seconds", "words"), [(3.0, "in 1 of 1 variants"), (9.0, "in 0 of 1 variants; not with calls-10")])
def test_a_sensitivity_run_is_no_cell_of_the_map(tmp_path: Path, seconds: float, words: str) -> None:
    scaled = '{"rpc_s": 10}'
    more = [row(f"{d}.calls-10", n, s + 0.01 * n, scaled=scaled) for d, s in (("all", seconds), ("E6", 6.0)) for n in (1, 2)]
    found = blocks(tmp_path, seed_cell() + more)
    assert words in answers(found)["What does it rest on?"]
    assert not [b for b in found if isinstance(b, Figure)]
    assert "calls-10" in table(found, "What the answer rests on")


def test_a_design_s_own_chunk_size_is_no_sensitivity_run(tmp_path: Path) -> None:
    rows = seed_cell() + [row("tuned", n, 3.0, scaled='{"chunk_tokens": 0.5}') for n in (1, 2, 3)]
    assert "tuned" in table(blocks(tmp_path, rows), "What each remedy buys")
