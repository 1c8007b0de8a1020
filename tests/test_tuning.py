"""`apd tune`: the search on figures that a test makes up, and once through the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from apd_replay import configuration
from apd_replay.tuning import FIRST_SEED, SPACE, Candidate, experiment_settings, front, search, tune

ROOT = Path(__file__).parent.parent


def row(ttft: float, throughput: float, errors: int = 0) -> dict[str, Any]:
    return {"response_ttft_p99": ttft, "throughput": throughput, "errors": errors}


def made_up(todo: list[tuple[dict[str, Any], int]]) -> list[dict[str, Any]]:
    """Tiers halve the TTFT, patience raises the throughput; seeds add a little."""
    return [row((10.0 if s["eviction"] == "tiered" else 20.0) + 0.01 * (seed - FIRST_SEED), 100.0 + s["max_pause_s"]) for s, seed in todo]


def test_the_search_finds_the_best_of_its_space_and_is_repeatable() -> None:
    found = search(["2p6d"], 120, 7, made_up)
    assert (found[0].settings["eviction"], found[0].settings["max_pause_s"]) == ("tiered", 120.0)
    assert [c.settings for c in search(["2p6d"], 120, 7, made_up)] == [c.settings for c in found]
    assert [c.settings for c in search(["2p6d"], 120, 8, made_up)] != [c.settings for c in found]


def test_every_round_keeps_fewer_and_measures_them_on_more_seeds() -> None:
    asked: list[list[int]] = []

    def count(todo: list[tuple[dict[str, Any], int]]) -> list[dict[str, Any]]:
        asked.append([seed for _, seed in todo])
        return made_up(todo)

    found = search(["2p6d", "1p7d"], 20, 1, count)
    assert [len(seeds) for seeds in asked] == [20, 8 * 2, 3 * 2]
    assert all(len(c.figures) == 5 for c in found) and len(found) == 3
    assert min(min(seeds) for seeds in asked) == FIRST_SEED


def test_errors_come_before_speed() -> None:
    fast, right = Candidate({}, [row(1.0, 500.0, errors=3)]), Candidate({}, [row(9.0, 100.0)])
    assert right.rank() < fast.rank()


def test_the_front_holds_what_nothing_beats_in_both() -> None:
    quick, busy, worse, same = (Candidate({}, [row(t, x)]) for t, x in ((1.0, 10.0), (5.0, 90.0), (5.0, 80.0), (1.0, 10.0)))
    assert front([busy, worse, quick, same]) == [quick, same, busy]


def test_every_setting_of_the_space_is_one_that_an_experiment_may_have() -> None:
    base = configuration.load(ROOT / "config/config.yaml").experiments["E0"]
    for key, values in SPACE.items():
        for value in values:
            settings = {"cluster": "2p6d", **{k: v[0] for k, v in SPACE.items()}, key: value}
            configuration.changed(base, experiment_settings(settings), ROOT / "config")
    quarter = configuration.changed(base, experiment_settings({"chunk_scale": 0.25}), ROOT / "config")
    assert quarter.hardware["chunk_tokens"] == base.hardware["chunk_tokens"] // 4


def test_splits_are_the_clusters_of_as_many_gpus() -> None:
    assert configuration.splits(ROOT / "config", 8) == ["1p7d", "2p6d", "3p5d", "4p4d"]


@pytest.mark.parametrize("trace", [None, "tiny-8"])
def test_the_choice_is_a_list_of_experiments_that_the_report_runs(tmp_path: Path, trace: str | None) -> None:
    for folder in ("schema", "clusters", "hardware", "experiments"):
        (tmp_path / "config" / folder).mkdir(parents=True)
        for file in (ROOT / "config" / folder).glob("*.yaml"):
            (tmp_path / "config" / folder / file.name).write_bytes(file.read_bytes())
    for name in ("config.yaml", "traces.yaml"):
        (tmp_path / "config" / name).write_bytes((ROOT / "config" / name).read_bytes())
    matrix = tmp_path / "config/experiments/matrix.yaml"
    content = yaml.safe_load(matrix.read_text())
    content["defaults"] |= {"first_sessions": 3, "first_turns": 4}
    matrix.write_text(yaml.safe_dump(content))
    out = tmp_path / "config/experiments/tuned.yaml"
    own = ["--set", f"trace={trace}"] if trace else []
    done = CliRunner().invoke(tune, ["--count", "3", "--jobs", "1", "--config", str(tmp_path / "config/config.yaml"), "--out", str(out), *own])
    assert done.exit_code == 0, done.output
    assert "engine sim" in done.output and "chosen: cluster:" in done.output
    listed = configuration.load(tmp_path / "config/config.yaml", "tuned").experiments
    suffix = f"@{trace}" if trace else ""
    assert list(listed) == [f"E0{suffix}", f"E6{suffix}", f"tuned{suffix}"]
    matrix_e0 = configuration.load(tmp_path / "config/config.yaml").experiments["E0"]
    assert listed[f"E0{suffix}"].as_json() == matrix_e0.as_json()
    tuned = listed[f"tuned{suffix}"]
    assert (tuned["concurrency"], tuned["rows"], tuned["title"]) == (32, "all", "chosen by apd tune")
