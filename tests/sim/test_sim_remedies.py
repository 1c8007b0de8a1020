"""F3, F4 and F6 on a simulated D, and every remedy on a crowded cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sim_world import crowded, experiment, run
from test_decode import COST, World

from apd_replay.replay import hints
from apd_replay.sim.decode import ADMISSION_EXPIRES_S
from apd_replay.sim.job import Job

ALL: dict[str, Any] = {"policy": "capacity_aware", "migration": True, "eviction": "tiered", "admission": "commit", "prefill_policy": "link_aware",
                       "backpressure": "drain"}  # fmt: skip


def appended(world: World, name: str, tokens: int, history: int) -> None:
    """A direct turn of `name`, to its end."""
    request = world.turn(name, tokens, history)
    assert world.ask(request).can_admit
    world.d.append(Job(request, 1.0))
    world.clock.run()


@pytest.mark.parametrize(("eviction", "left"), [("idle_lru", ["cold"]), ("tiered", ["hot"])])
def test_tiers_keep_the_session_that_came_back(eviction: str, left: list[str]) -> None:
    world = World(10_000, eviction=eviction)
    world.resident("hot", 3000)
    appended(world, "hot", 3200, 3000)
    world.resident("cold", 3000)
    world.through_p("new", 5000)
    assert list(world.d.idle) == left
    world.check()


def test_a_session_whose_kv_came_anew_is_cold_again() -> None:
    world = World(10_000, eviction="tiered")
    world.resident("a", 2000)
    appended(world, "a", 2200, 2000)
    assert world.d.direct_turns == {"a": 1}
    job = world.through_p("a", 2400, turn=2)
    world.d.transferred(job)
    world.clock.run()
    assert world.d.direct_turns == {}


@pytest.mark.parametrize(("admission", "at_once"), [("coupled", False), ("commit", True)])
def test_a_no_comes_from_the_probe_without_waiting_for_a_step(admission: str, at_once: bool) -> None:
    world = World(10_000, admission=admission)
    world.resident("a", 2000)
    busy = world.through_p("busy", 7000, output=400)
    world.d.transferred(busy)
    world.clock.run(world.clock.now + 0.1003)  # in the middle of a step
    asked, told = world.clock.now, []
    world.d.ask(world.turn("a", 9000, 2000), lambda answer: told.append((world.clock.now - asked, answer.can_admit)))
    world.clock.run(asked + 0.1)
    [(after, admitted)] = told
    assert not admitted
    assert (after == pytest.approx(COST.rpc_s)) is at_once


def test_a_commit_expires_and_gives_its_room_back() -> None:
    world = World(10_000, admission="commit")
    world.resident("a", 2000)
    used = world.d.used
    assert world.ask(world.turn("a", 3000, 2000)).can_admit
    assert world.d.used > used and not world.d.idle
    world.clock.run(world.clock.now + ADMISSION_EXPIRES_S + 0.1)
    assert (world.d.used, list(world.d.idle), world.d.committed) == (used, ["a"], {})
    world.check()


def test_a_turn_that_comes_in_time_is_not_touched_by_the_expiry() -> None:
    world = World(10_000, admission="commit")
    world.resident("a", 2000)
    appended(world, "a", 2500, 2000)
    world.clock.run(world.clock.now + 2 * ADMISSION_EXPIRES_S)
    assert list(world.d.idle) == ["a"]
    world.check()


def test_the_drain_hint_grows_with_what_is_missing_and_falls_with_what_leaves() -> None:
    world = World(10_000, hint=hints.formula("drain", 1.0))
    world.resident("a", 5000)
    world.resident("b", 4000)
    small, large = (world.ask(world.turn("new", tokens, 0)).recommended_pause_ms for tokens in (600, 4000))
    assert small == large == hints.LONGEST_DRAIN_MS  # nobody has left yet
    world.d.close("b")
    world.resident("c", 4000)
    small, large = (world.ask(world.turn("new", tokens, 0)).recommended_pause_ms for tokens in (600, 1000))
    assert 100.0 <= small < large < hints.LONGEST_DRAIN_MS
    world.d.close("c")
    assert world.ask(world.turn("new", 2000, 0)).recommended_pause_ms == 0.0  # room enough: through a P at once


@pytest.mark.parametrize("settings", [*({k: v} for k, v in ALL.items()), ALL, {**ALL, "max_pause_s": 60.0}], ids=[*ALL, "all", "patient"])
def test_every_remedy_serves_a_crowded_cluster_with_balanced_books(tmp_path: Path, settings: dict[str, Any]) -> None:
    turns, keys = crowded()
    rows = run(experiment(**keys, **settings), turns, tmp_path / "a", after_each=lambda cluster: cluster.check_books())
    assert len(rows) == turns.requests
    assert {row["status"] for row in rows.values()} == {"ok"}
    assert run(experiment(**keys, **settings), turns, tmp_path / "b") == rows
    bound = [json.loads(line)["D"] for line in (tmp_path / "a/structural/session-d-binding.jsonl").read_text().splitlines()]
    moved = len(bound) > len(turns.sessions)
    assert moved == ("migration" in settings and settings.get("max_pause_s") is None)  # whoever waits long enough need not move


def test_patience_turns_fallbacks_into_direct_turns(tmp_path: Path) -> None:
    """Eight sessions on room for about half of them: those that wait for room find it when others have ended."""
    turns, keys = crowded()
    direct = {}
    designs: dict[str, dict[str, Any]] = {"none": {}, "patient": {"eviction": "tiered", "backpressure": "drain", "max_pause_s": 120.0}}
    for name, settings in designs.items():
        rows = run(experiment(**keys, **settings), turns, tmp_path / name)
        direct[name] = sum(row["path"] == "direct" for row in rows.values())
    assert direct["patient"] > direct["none"]
