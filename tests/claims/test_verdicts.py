"""The rules that make a verdict of effects, one by one."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apd_replay.claims.deciding import casting, decide_all
from apd_replay.claims.evidence import Cast, Evidence, Measured, Row
from apd_replay.claims.fairness import compare, stated
from apd_replay.claims.rules import Claim, Effect, load
from apd_replay.claims.verdicts import State, condition, decide
from apd_replay.warehouse import database

from .conftest import World

CONFIG = Path(__file__).parents[2] / "config"


def effect(**more: Any) -> Effect:
    return Effect(**{"metric": "m", "says": "it is so", "terms": {"E0": 1}, "name": "m", "bound": "at_least", "threshold": 1.0, **more})


def measured(e: Effect, engine: str = "imported", **values: list[float]) -> Measured:
    """The effect over experiments whose replicates 1, 2, ... have these values."""
    rows = [Row(engine, "t", "s", "m", name, r, None, v, None, None, "x", 1) for name, vs in values.items() for r, v in enumerate(vs, 1)]
    seeds: dict[str, dict[int, int | None]] = {name: {r: r for r in range(1, len(vs) + 1)} for name, vs in values.items()}
    return Evidence(rows, Cast(engine, "t", {n: n for n in values}, seeds, {n: [] for n in values})).measure(e)


def over(value: float, n: int, **more: Any) -> Measured:
    rows = [Row("sim", "t", "s", "m", "E0", None, None, value, None, None, "x", n)]
    return Evidence(rows, Cast("sim", "t", {"E0": "E0"}, {"E0": {}}, {"E0": []})).measure(effect(over=True, **more))


@pytest.mark.parametrize(
    ("values", "state", "leans"),
    [
        ([1.5, 1.6, 1.7], State.MET, True),
        ([0.1, 0.2, 0.3], State.NOT_MET, False),
        ([1.0, 1.0, 1.0], State.MET, True),  # at_least holds the threshold
        ([1.1, 1.2, 9.0], State.OPEN, True),  # all on one side, but the interval is wide
        ([0.9, 1.5, 1.6], State.OPEN, True),  # replicates on both sides
        ([5.0, 6.0], State.LIKELY, True),  # two replicates, beyond their spread
        ([2.0, 9.0], State.OPEN, True),  # two replicates, within it
        ([5.0], State.OPEN, True),  # no spread was ever seen
        ([2.0, 3.0, math.inf], State.OPEN, True),  # an infinite quantile decides nothing
        ([], State.MISSING, None),
    ],
)
def test_condition(values: list[float], state: State, leans: bool | None) -> None:
    found = condition(measured(effect(), E0=values))
    assert (found.state, found.leans) == (state, leans)


def test_a_threshold_that_is_not_included() -> None:
    assert condition(measured(effect(bound="above"), E0=[1.0, 1.0, 1.0])).state is State.NOT_MET
    assert condition(measured(effect(bound="below"), E0=[1.0, 1.0, 1.0])).state is State.NOT_MET


def test_ratios_are_tested_on_the_log_scale_and_changes_shown_as_such() -> None:
    e = effect(terms={"E1": 1, "E0": -1}, log=True, change=True, bound="at_most", threshold=-0.7)
    found = measured(e, E1=[20.0, 22.0, 18.0], E0=[100.0, 110.0, 90.0], engine="sim")
    assert found.paired and found.estimate and found.shown(found.estimate.value) == pytest.approx(-0.8)
    assert condition(found).state is State.MET
    assert condition(measured(e, E1=[40.0, 44.0, 36.0], E0=[100.0, 110.0, 90.0])).state is State.NOT_MET


def test_simulated_runs_of_other_seeds_are_not_paired() -> None:
    cast = Cast("sim", "t", {}, {"A": {1: 1}, "B": {1: 2}}, {})
    assert not cast.paired(["A", "B"])
    assert Cast("sim", "t", {}, {"A": {1: 1}, "B": {1: 1}}, {}).paired(["A", "B"])
    assert not Cast("sglang", "t", {}, {"A": {1: 1}, "B": {1: 1}}, {}).paired(["A", "B"])


def test_clear_of_is_never_found_equal() -> None:
    e = effect(bound="clear_of", threshold=0.0)
    assert condition(measured(e, E0=[-2.0, -2.1, -1.9])).state is State.MET
    assert condition(measured(e, E0=[-0.1, 0.1, 0.0])).state is State.OPEN


def test_holm_opens_a_condition() -> None:
    found = condition(measured(effect(), E0=[1.5, 1.6, 1.7]), holm_stands=False)
    assert found.state is State.OPEN and "Holm" in found.because


def test_a_figure_over_all_replicates_is_tested_itself() -> None:
    assert condition(over(2.4, 3)).state is State.MET
    assert condition(over(0.5, 3)).state is State.NOT_MET
    assert condition(over(2.4, 2)).state is State.OPEN
    spread = {"threshold": 1.3, "refuted_below": 1.1, "refuted_from_n": 10}
    assert condition(over(1.05, 3, **spread)).state is State.OPEN
    assert condition(over(1.05, 10, **spread)).state is State.NOT_MET
    assert condition(over(1.2, 10, **spread)).state is State.OPEN


def claim(**more: Any) -> Claim:
    base = Claim("s", "", None, "", True, (), None, False, (), None, None, {}, None)
    return replace(base, **more)


MET, NOT, OPEN = [1.5, 1.6, 1.7], [0.1, 0.2, 0.3], [0.9, 1.5, 1.6]
LIKELY, UNLIKELY, MISSING = [5.0, 6.0], [-5.0, -6.0], list[float]()


@pytest.mark.parametrize(
    ("conditions", "verdict", "leaning"),
    [
        ([MET, MET], "holds", None),
        ([NOT, NOT], "refuted", None),
        ([MET, NOT], "partly", None),
        ([NOT, MET], "partly", None),
        ([MET, MISSING], "partly", None),
        ([NOT, MISSING], "undecided", "refuted"),
        ([OPEN], "undecided", "holds"),
        ([LIKELY, LIKELY], "provisional", "holds"),
        ([UNLIKELY, LIKELY], "provisional", "refuted"),
        ([OPEN, LIKELY], "undecided", "holds"),
        ([MISSING], "undecided", None),
    ],
)
def test_verdict_of_conditions(conditions: list[list[float]], verdict: str, leaning: str | None) -> None:
    found = decide(claim(), [condition(measured(effect(), E0=v)) for v in conditions], [], "imported")
    assert (found.verdict, found.leaning) == (verdict, leaning)
    assert len(found.notes) == len(conditions) and all("it is so" in n for n in found.notes)


def test_one_of_several_conditions_may_be_enough() -> None:
    both = [condition(over(2.0, 3, threshold=1.3)), condition(over(1.0, 3, threshold=1.3))]
    assert decide(claim(need_all=False), both, [], "imported").verdict == "holds"
    assert decide(claim(need_all=False), both[1:], [], "imported").verdict == "refuted"


def test_a_metric_that_clearly_goes_the_other_way_makes_it_partly_and_is_named() -> None:
    other = condition(measured(effect(says="P90 is longer", counter=True), E0=NOT))
    found = decide(claim(), [condition(measured(effect(), E0=MET))], [other], "imported")
    assert found.verdict == "partly" and any("P90 is longer" in n for n in found.notes)


def test_what_the_simulator_assumes_is_provisional_at_most() -> None:
    found = decide(claim(assumed_by_simulator=True), [condition(measured(effect(), E0=MET))], [], "sim")
    assert (found.verdict, found.leaning) == ("provisional", "holds")
    assert any("follows from the model" in n for n in found.notes)
    assert decide(claim(assumed_by_simulator=True), [condition(measured(effect(), E0=MET))], [], "sglang").verdict == "holds"


def test_some_claims_take_a_real_engine() -> None:
    found = decide(claim(engines=("sglang",)), [condition(measured(effect(), E0=MET))], [], "sim")
    assert found.verdict == "undecided" and found.notes[0] == "decided on engine sglang only"


def test_withdrawn_stays_withdrawn() -> None:
    assert decide(claim(withdrawn="not a bug"), [], [], "sim").verdict == "withdrawn"


# whole matrices of tiny runs ----------------------------------------------------------------------------------------


def verdicts(world: World) -> dict[tuple[str, str], dict[str, Any]]:
    with database.connect(world.results) as connection:
        decided = decide_all(connection, load(CONFIG))
    return {(v["claim"], v["trace"]): v for v in decided.verdicts}


def replicates(world: World, experiment: str, latency: list[float], errors: int = 0, **facts: Any) -> None:
    path = "dp" if facts.get("cluster") == "8dp" else "seed"
    for r, seconds in enumerate(latency, 1):
        rows: list[dict[str, Any]] = [{"finished_t": seconds, "first_token_t": seconds / 2, "path": path} for _ in range(20)]
        rows += [{"status": "error", "error_kind": "aborted", "path": path} for _ in range(errors)]
        world.run(experiment, r, requests=rows, **facts)


def test_headline_of_paired_simulated_runs(world: World) -> None:
    replicates(world, "E0", [3.0, 3.2, 3.4], errors=2)
    replicates(world, "E6", [1.0, 1.1, 1.2], cluster="8dp")
    found = verdicts(world)["headline", "t"]
    assert found["verdict"] == "holds" and found["n"] == 3
    assert found["effect"] == pytest.approx((3.0 * (3.2 / 1.1) * (3.4 / 1.2)) ** (1 / 3))
    assert found["effect_low"] > 2 and found["experiments"] == ["E0", "E6"] and found["runs"] == ["E0-1", "E0-2", "E0-3", "E6-1", "E6-2", "E6-3"]


def test_a_run_that_was_cut_counts_and_is_named(world: World) -> None:
    replicates(world, "E0", [3.0, 3.2, 3.4], errors=2, status="truncated")
    replicates(world, "E6", [1.0, 1.1, 1.2], cluster="8dp")
    found = verdicts(world)["headline", "t"]
    assert found["verdict"] == "holds" and "runs of E0 were cut before their end" in found["confounders"]


def test_headline_refuses_unequal_gpus_and_names_what_is_not_stated(world: World) -> None:
    replicates(world, "E0", [3.0, 3.2, 3.4], errors=2)
    replicates(world, "E6", [1.0, 1.1, 1.2], cluster="4dp")
    found = verdicts(world)["headline", "t"]
    assert found["verdict"] == "undecided" and "refused: KVC and DP differ in GPUs (4 against 8)" in found["notes"]


def test_every_engine_and_trace_has_its_own_row_and_a_part_is_played_by_its_base_id(world: World) -> None:
    replicates(world, "E0", [3.0, 3.2, 3.4], errors=2)
    replicates(world, "E6", [1.0, 1.1, 1.2], cluster="8dp")
    replicates(world, "E0@acg", [1.0, 1.1, 1.2], trace="acg")
    replicates(world, "E6@acg", [3.0, 3.2, 3.4], errors=2, cluster="8dp", trace="acg")
    found = verdicts(world)
    assert found["headline", "t"]["verdict"] == "holds" and found["headline", "acg"]["verdict"] == "refuted"
    assert len(found) == 2 * len(load(CONFIG).claims)


def test_failed_runs_play_no_part_and_other_hardware_is_named() -> None:
    run = {"engine": "sim", "trace": "t", "status": "complete", "replicate": 1, "seed": 1, "run_id": "x"}
    [cast] = casting([{**run, "experiment": "E0"}, {**run, "experiment": "E0@h200"}, {**run, "experiment": "E6", "status": "failed"}])
    assert cast.parts == {"E0": "E0"} and cast.left_out == ("E0@h200",)


def test_backpressure_without_long_waits_is_partly_and_names_the_latch(world: World) -> None:
    for r in (1, 2, 3):
        quick = [{"bootstrap_room": k, "status": "error", "error_kind": "peer_dead", "finished_t": 0.5} for k in range(40)]
        world.run("E0", r, requests=[*quick, *({} for _ in range(60 + r))])
        world.run("E1", r, requests=[*quick[:4], *({} for _ in range(96 + r))])
    found = verdicts(world)["s3", "t"]
    assert found["verdict"] == "partly" and "the cause is the latch (s8)" in found["notes"]
    assert "errors (-0.88" in found["fix_effect"]


# what is equal on both sides ---------------------------------------------------------------------------------------


def facts(**run: Any) -> Any:
    import json

    return stated({"model": "m", "trace_digest": "d", **run, "config": json.dumps(run.get("config", {}))})


def test_a_stated_difference_is_refused_and_an_unstated_value_named() -> None:
    kvc, dp = facts(cluster="2p6d"), facts(cluster="8dp")
    assert compare([kvc, dp]).refused is None
    assert compare([kvc, dp]).confounders == ("memory fraction is not stated", "hardware is not stated")
    assert "model" in (compare([kvc, facts(cluster="8dp", model="other")]).refused or "")
    assert "trace" in (compare([kvc, facts(cluster="8dp", trace_digest="other")]).refused or "")
    shapes = ({"prefill": 2, "decode": 6}, {"workers": 8})
    memory = [facts(config={"cluster": {**c, "server_args": ["--mem-fraction-static", m]}}) for c, m in zip(shapes, ("0.8", "0.9"), strict=True)]
    assert compare(memory).refused == "refused: KVC and DP differ in memory fraction (0.8 against 0.9)"


def test_runs_of_one_design_may_differ() -> None:
    assert compare([facts(cluster="2p6d"), facts(cluster="1p3d")]).refused is None
