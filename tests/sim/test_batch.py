"""Stepping in closed form is the same as stepping one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim_world import experiment

from apd_replay.replay.core import Request
from apd_replay.sim.batch import Batch
from apd_replay.sim.cost import Cost
from apd_replay.sim.job import Job

COST = Cost(experiment().hardware, "mooncake")


def job(name: str, prompt: int, output: int, noise: float = 1.0) -> Job:
    made = Job(Request(name, name, 0, prompt, output, None, None, 0.0), noise)
    made.generated = 1
    return made


JOBS = st.lists(st.tuples(st.integers(1, 60_000), st.integers(2, 900), st.floats(0.9, 1.1)), min_size=1, max_size=12)


def batch_of(shapes: list[tuple[int, int, float]]) -> Batch:
    batch = Batch(COST)
    for k, (prompt, output, noise) in enumerate(shapes):
        batch.join(job(f"j{k}", prompt, output, noise))
    return batch


@given(JOBS, st.integers(0, 800))
def test_k_steps_take_the_sum_of_k_step_times(shapes: list[tuple[int, int, float]], k: int) -> None:
    batch = batch_of(shapes)
    n, context = len(shapes), sum(prompt + 1 for prompt, _, _ in shapes)
    base = COST.step_s[n] * sum(noise for _, _, noise in shapes) / n
    slow = sum(base + COST.context_s * (context + n * step) for step in range(k))
    assert batch.time_of(k) == pytest.approx(slow, rel=1e-9)
    batch.advance(k)
    assert (batch.t0, batch.step, batch.context) == (pytest.approx(slow, rel=1e-9), k, context + n * k)
    assert batch.time_of(1) - batch.t0 == pytest.approx(base + COST.context_s * (context + n * k), rel=1e-9)


@given(JOBS, st.floats(0, 60))
def test_the_steps_done_by_a_time_are_the_whole_ones(shapes: list[tuple[int, int, float]], t: float) -> None:
    batch = batch_of(shapes)
    k = batch.steps_by(t)
    assert batch.time_of(k) <= t < batch.time_of(k + 1)


def test_requests_end_after_their_answers_in_order_and_one_that_left_never_ends() -> None:
    batch = Batch(COST)
    long, short, gone = job("long", 100, 9), job("short", 100, 4), job("gone", 100, 3)
    for each in (long, short, gone):
        batch.join(each)
    assert batch.next_end() == 2
    batch.advance(1)
    batch.leave(gone)
    assert (gone.generated, gone.held) == (2, 1)
    batch.advance(batch.next_end() - batch.step)
    assert batch.pop_ended() is short and batch.pop_ended() is None
    batch.leave(short)
    assert (short.generated, batch.n, batch.next_end()) == (4, 1, 8)
