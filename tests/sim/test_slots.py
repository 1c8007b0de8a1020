"""Where a D's KV lies: runs of neighbouring slots, and what a transfer into many of them takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sim_world import experiment

from apd_replay.replay.core import Request
from apd_replay.sim.cost import Cost
from apd_replay.sim.job import Job
from apd_replay.sim.slots import Scattered, Together


def job(session: str) -> Job:
    return Job(Request(f"{session}-0", session, 0, 100, 50, None, None, 0.0, decode=0), 1.0)


def test_a_prompt_into_an_empty_pool_is_one_run() -> None:
    assert Scattered(1000).take("a", 400) == 1


def test_what_one_of_two_leaves_behind_lies_between_what_the_other_keeps() -> None:
    slots = Scattered(200)
    slots.take("a", 10)
    slots.take("b", 10)
    slots.step([job("a"), job("b")], 50)
    slots.give("a")
    assert slots.take("c", 80) == 1, "the front is long enough: not sorted yet"
    assert slots.take("d", 50) == 1 + 40, "a's ten prompt slots together with its first answer slot behind b's, then one by one"


def test_a_session_grows_by_what_it_lacks() -> None:
    slots = Scattered(100)
    slots.take("a", 30)
    slots.step([job("a")], 5)
    slots.take("a", 40)
    slots.give("a")
    slots.take("b", 61)
    assert slots.take("c", 39) >= 1 and slots.take("d", 1) == 1


@given(st.lists(st.tuples(st.sampled_from(["take", "step", "give"]), st.sampled_from("abc"), st.integers(1, 60)), max_size=40))
def test_no_slot_has_two_owners_and_none_is_lost(moves: list[tuple[str, str, int]]) -> None:
    slots = Scattered(4000)
    for kind, session, tokens in moves:
        if kind == "take":
            slots.take(session, tokens)
        elif kind == "step":
            slots.step([job(session), job("x")], tokens)
        else:
            slots.give(session)
    owned = [int(place) for session in "abcx" for places in slots._taken.get(session, []) for place in places]
    free = [int(place) for places in (slots._front, *slots._aside) for place in places]
    assert sorted(owned + free) == list(range(4000))


def test_runs_cost_what_the_hardware_file_says_and_nothing_where_it_says_nothing() -> None:
    hardware = experiment().hardware
    plain = Cost(hardware, "mooncake")
    priced = Cost({**hardware, "transfer": {**hardware["transfer"], "mooncake": {**hardware["transfer"]["mooncake"], "run_s": 1e-3}}}, "mooncake")
    assert plain.transfer_s(1000, 500) == plain.transfer_s(1000, 0) == priced.transfer_s(1000, 0)
    assert priced.transfer_s(1000, 500) - priced.transfer_s(1000, 0) == 0.5
    assert Together().take("a", 10) == 1
