"""What a trace and settings become before anything is sent: which sessions, when, with which gaps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apd_replay.configuration import Experiment
from apd_replay.errors import RunError
from apd_replay.replay.plan import plan
from apd_replay.trace.load import load
from apd_replay.trace.model import Session, Trace, Turn

CONFIG = Path(__file__).parent.parent.parent / "config"
SETTINGS = {"first_sessions": None, "first_turns": None, "start_spread_s": 30, "gap_cap_s": None, "time_scale": 10, "arrival_scale": None, "gap_scale": None,
            "over_context": "end_session"}


def experiment(context_tokens: int = 131_072, **change: Any) -> Experiment:
    assert set(change) <= set(SETTINGS)
    return Experiment("X", SETTINGS | change, {"context_tokens": context_tokens, "decode": 6}, {})


def session(name: str, *turns: tuple[float, float | None, int, int]) -> Session:
    """turns: arrival_s, gap_s, prompt, answer."""
    return Session(name, tuple(Turn(name, k, at, gap, "think" if k else None, prompt, answer) for k, (at, gap, prompt, answer) in enumerate(turns)))


SMALL = Trace("small", "", (
    session("a", (5.0, None, 100, 10), (7.0, 2.0, 200, 0), (107.0, 100.0, 400, 10)),
    session("b", (25.0, None, 50, 5)),
    session("c", (45.0, None, 60, 5), (50.0, 5.0, 90, 5)),
))


@pytest.fixture(scope="module")
def trace() -> Trace:
    return load("swebench-52", config_dir=CONFIG)


def test_the_whole_trace_is_planned(trace: Trace) -> None:
    planned = plan(trace, experiment(), 1)
    assert (planned.requests, len(planned.sessions), planned.over_context) == (4449, 52, 0)
    first = planned.sessions[0].requests[1]
    turn = trace.sessions[0].turns[1]
    assert (first.id, first.input_tokens, first.shared_tokens, first.hash_ids) == (f"{turn.session}-1", turn.input_tokens, turn.shared_tokens, turn.hash_ids)
    assert len({r.id for s in planned.sessions for r in s.requests}) == 4449


def test_offsets_are_keyed_by_seed_and_session(trace: Trace) -> None:
    starts = {s.id: s.start_t for s in plan(trace, experiment(), 3).sessions}
    assert all(0.0 <= t <= 30.0 for t in starts.values()) and len(set(starts.values())) == 52
    paired = plan(trace, experiment(first_sessions=12, time_scale=1), 3).sessions
    assert {s.id: s.start_t for s in paired} == {k: starts[k] for k in list(starts)[:12]}, "the same offsets in every experiment"
    backwards = replace(trace, sessions=trace.sessions[::-1])
    assert {s.id: s.start_t for s in plan(backwards, experiment(), 3).sessions} == starts
    assert all(s.start_t != starts[s.id] for s in plan(trace, experiment(), 4).sessions)


def test_first_sessions_and_turns(trace: Trace) -> None:
    planned = plan(trace, experiment(first_sessions=12, first_turns=5), 1)
    assert [s.id for s in planned.sessions] == [s.id for s in trace.sessions[:12]] and planned.requests == 60


def test_scales() -> None:
    def starts_and_gaps(**change: Any) -> tuple[list[float], list[float]]:
        planned = plan(SMALL, experiment(start_spread_s=0, **change), 1).sessions
        return [s.start_t for s in planned], [r.gap_s for s in planned for r in s.requests if r.turn]

    assert starts_and_gaps(time_scale=1) == ([0.0, 20.0, 40.0], [2.0, 100.0, 5.0])
    assert starts_and_gaps() == ([0.0, 2.0, 4.0], [0.2, 10.0, 0.5])
    assert starts_and_gaps(gap_scale=2) == ([0.0, 2.0, 4.0], [1.0, 50.0, 2.5])
    assert starts_and_gaps(arrival_scale=2) == ([0.0, 10.0, 20.0], [0.2, 10.0, 0.5])


def test_a_gap_cap_counts_before_scaling() -> None:
    planned = plan(SMALL, experiment(gap_cap_s=4, start_spread_s=0), 1)
    assert [r.gap_s for s in planned.sessions for r in s.requests if r.turn] == [0.2, 0.4, 0.4]
    assert planned.expected_span_s == pytest.approx(4.4)


def test_empty_answers_ask_for_one_token() -> None:
    assert [r.asked_output_tokens for r in plan(SMALL, experiment(), 1).sessions[0].requests] == [10, 1, 10]


def test_over_context_ends_the_session_there_and_is_counted() -> None:
    planned = plan(SMALL, experiment(context_tokens=200), 1)
    assert {s.id: len(s.requests) for s in planned.sessions} == {"a": 2, "b": 1, "c": 2} and planned.over_context == 1
    planned = plan(SMALL, experiment(context_tokens=60), 1)
    assert {s.id: len(s.requests) for s in planned.sessions} == {"b": 1} and planned.over_context == 5
    with pytest.raises(RunError, match="session a turn 2 needs 410 tokens, more than context_tokens = 200"):
        plan(SMALL, experiment(context_tokens=200, over_context="fail"), 1)


def test_the_same_plan_every_time(trace: Trace) -> None:
    def told() -> list[tuple[float, list[tuple[Any, ...]]]]:
        return [(s.start_t, [(r.id, r.gap_s, r.input_tokens, r.asked_output_tokens, r.hash_ids) for r in s.requests]) for s in plan(trace, experiment(), 7).sessions]

    assert told() == told()
