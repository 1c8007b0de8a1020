"""A decode worker alone: queues, slots, admission, retraction."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from sim_world import experiment

from apd_replay.replay.core import AdmissionAnswer, Request
from apd_replay.sim.clock import Clock
from apd_replay.sim.cost import Cost
from apd_replay.sim.decode import RESERVED_TOKENS, DecodeWorker, Design
from apd_replay.sim.job import Job, Stage
from apd_replay.sim.loglines import WorkerLog

COST = Cost(experiment().hardware, "mooncake")


class World:
    """One D of `pool` tokens; what it tells is kept."""

    def __init__(self, pool: int, *, retraction: bool = True, **design: Any) -> None:
        self.clock = Clock()
        self.bootstrapped: list[str] = []
        self.done: list[tuple[float, str]] = []
        self.firsts: dict[str, float] = {}
        self.failures: dict[str, str] = {}
        chosen = Design(**{"resident": True, "admission": "coupled", "eviction": "idle_lru", "admission_cost": True, "output_reserve_tokens": 512, "hint": lambda *_: 0.0, **design})
        self.d = DecodeWorker(self.clock, COST, WorkerLog(None, 0.0), self, pool, retraction=retraction, design=chosen,
                              bootstrapped=lambda job, t: self.bootstrapped.append(job.rid))  # fmt: skip

    def first_token(self, job: Job) -> None:
        self.firsts[job.rid] = self.clock.now

    def finished(self, job: Job) -> None:
        self.done.append((self.clock.now, job.rid))

    def failed(self, job: Job, kind: str, message: str) -> None:
        self.failures[job.rid] = kind

    def through_p(self, name: str, tokens: int, output: int = 50, turn: int = 0) -> Job:
        job = Job(Request(f"{name}-{turn}", name, turn, tokens, output, None, None, 0.0, decode=0), 1.0)
        self.d.arrive(job)
        return job

    def resident(self, name: str, tokens: int) -> None:
        """A session that is idle on the D."""
        job = self.through_p(name, tokens - 49)
        self.d.transferred(job)
        self.clock.run()

    def turn(self, name: str, tokens: int, history: int, output: int = 50) -> Request:
        return Request(f"{name}-1", name, 1, tokens, output, history, None, 0.0, decode=0, path="direct", history_tokens=history)

    def ask(self, request: Request) -> AdmissionAnswer:
        answers: list[AdmissionAnswer] = []
        self.d.ask(request, answers.append)
        while not answers:
            self.clock.run(self.clock.now + 0.1)
        return answers[0]

    def check(self) -> None:
        assert sum(self.d.parts()) == self.d.used


def test_preallocation_is_first_in_first_out_and_stops_at_the_first_that_does_not_fit() -> None:
    world = World(10_000)
    world.through_p("a", 4000)
    big = world.through_p("big", 8000)
    world.through_p("small", 100)  # would fit
    assert world.bootstrapped == ["a-0"]
    world.d.drop(big)
    assert world.bootstrapped == ["a-0", "small-0"]
    world.check()


def test_room_is_kept_for_every_request_under_way() -> None:
    world = World(10_000)
    for k in range(3):
        world.through_p(f"s{k}", 2000)
    free = 10_000 - 3 * 2000 - 3 * RESERVED_TOKENS
    world.through_p("exact", free - RESERVED_TOKENS)
    assert world.bootstrapped[-1] == "exact-0"
    world = World(10_000)
    for k in range(3):
        world.through_p(f"s{k}", 2000)
    world.through_p("one too many", free - RESERVED_TOKENS + 1)
    assert len(world.bootstrapped) == 3


def test_a_prompt_that_can_never_fit_is_refused_at_once() -> None:
    world = World(1000)
    world.through_p("a", 990, output=20)
    assert world.failures == {"a-0": "http_4xx"} and world.d.used == 0


def test_idle_sessions_make_way_oldest_first_and_those_in_flight_never() -> None:
    world = World(10_000)
    for name in ("old", "middle", "new"):
        world.resident(name, 2500)
    asked = world.turn("old", 3000, 2500)
    assert world.ask(asked).can_admit  # asked for: the most recently used now
    world.d.append(Job(asked, 1.0))
    world.through_p("x", 3000)
    assert world.bootstrapped[-1] == "x-0"
    assert list(world.d.idle) == ["new"]
    world.check()
    world.through_p("y", 6000)  # only `old`, in flight, is left to make room
    assert world.bootstrapped[-1] == "x-0"


def test_admission_evicts_others_to_make_room_and_says_so() -> None:
    world = World(10_000)
    for name in ("a", "b", "c"):
        world.resident(name, 3000)
    answer = world.ask(world.turn("c", 6000, 3000))
    assert (answer.can_admit, answer.evicted_session_count) == (True, 1)
    assert answer.available_tokens == 4000
    assert list(world.d.idle) == ["b", "c"]


def test_admission_is_refused_where_even_eviction_cannot_help_or_the_session_is_not_there() -> None:
    world = World(10_000)
    world.resident("a", 3000)
    world.resident("b", 3000)
    answer = world.ask(world.turn("b", 9600, 3000))
    assert not answer.can_admit
    assert answer.evicted_session_count == 1  # a coupled call evicts as it goes
    assert not world.ask(world.turn("stranger", 10, 0)).can_admit


def test_commit_evicts_nothing_in_vain_and_sets_tokens_aside() -> None:
    world = World(10_000, admission="commit")
    world.resident("a", 3000)
    world.resident("b", 3000)
    answer = world.ask(world.turn("b", 9600, 3000))
    assert (answer.can_admit, answer.evicted_session_count, list(world.d.idle)) == (False, 0, ["a", "b"])
    asked = world.turn("b", 5000, 3000)
    assert world.ask(asked).can_admit
    assert world.d.used == 3000 + 3000 + 2000 + 512
    world.check()
    world.through_p("x", 9000)
    assert "b" not in world.d.idle and world.d.committed  # what an admission promised cannot be evicted
    world.d.append(Job(asked, 1.0))
    world.check()
    world.clock.run()
    assert world.done[-1][1] == "b-1"


def test_calls_are_answered_between_two_steps_one_a_step() -> None:
    world = World(100_000)
    for name in ("a", "b", "c"):
        world.resident(name, 3000)
    busy = world.through_p("busy", 20_000, output=2000)
    world.d.transferred(busy)
    start = world.clock.now
    world.clock.run(start + 0.1)
    answered: list[float] = []
    for name in ("a", "b", "c"):
        world.d.ask(world.turn(name, 3500, 3000), lambda answer: answered.append(world.clock.now))
    world.clock.run(world.clock.now + 0.2)
    step = COST.step_s[1] + COST.context_s * 20_000
    gaps = [b - a for a, b in pairwise(answered)]
    assert gaps == pytest.approx([step + COST.admission_s] * 2, rel=0.01)


def test_a_snapshot_is_answered_at_once_and_takes_no_step() -> None:
    world = World(100_000, admission="snapshot")
    world.resident("a", 3000)
    busy = world.through_p("busy", 20_000, output=2000)
    world.d.transferred(busy)
    world.clock.run(world.clock.now + 0.1)
    asked_at, answered = world.clock.now, []
    world.d.ask(world.turn("a", 3500, 3000), lambda answer: answered.append((world.clock.now, answer.can_admit)))
    world.clock.run(asked_at + 0.2)
    assert answered == [(pytest.approx(asked_at + COST.rpc_s), True)]


def test_a_direct_turn_computes_only_what_is_new() -> None:
    world = World(100_000)
    world.resident("a", 3000)
    turn = Job(world.turn("a", 3600, 3000), 1.0)
    start = world.clock.now
    world.d.append(turn)
    world.clock.run()
    assert (turn.cached, turn.slot_lost) == (3000, False)
    assert world.firsts["a-1"] - start == pytest.approx(COST.chunk_s + COST.prompt_s(600, 3000))
    assert world.d.idle == {"a": 3600 + 49}


def test_a_direct_turn_whose_slot_is_gone_computes_its_history_again() -> None:
    world = World(100_000)
    world.resident("a", 3000)
    assert world.d.reclaim(1) == 3000
    turn = Job(world.turn("a", 3600, 3000), 1.0)
    start = world.clock.now
    world.d.append(turn)
    world.clock.run()
    assert (turn.cached, turn.slot_lost) == (0, True)
    assert world.firsts["a-1"] - start == pytest.approx(COST.chunk_s + COST.prompt_s(3600, 0))


def test_an_append_that_waits_for_room_is_not_overtaken_by_prompts_through_p() -> None:
    world = World(11_000)
    world.resident("a", 3000)
    world.d.transferred(world.through_p("busy", 4000, output=900))
    assert world.ask(world.turn("a", 5000, 3000)).can_admit
    blocker = world.through_p("blocker", 1400)  # takes the room between admission and arrival
    turn = Job(world.turn("a", 5000, 3000), 1.0)
    world.d.append(turn)
    world.clock.run(world.clock.now + 0.1)
    world.through_p("next", 50)
    assert (turn.stage, world.bootstrapped[-1]) == (Stage.WAITING, "blocker-0")
    world.d.drop(blocker)
    world.clock.run()
    assert turn.generated == 50 and world.bootstrapped[-1] == "next-0"


def test_a_prompt_computed_here_stalls_the_decoding() -> None:
    quiet, disturbed = World(100_000), World(100_000)
    for world in (quiet, disturbed):
        world.resident("a", 3000)
        world.d.transferred(world.through_p("long", 5000, output=400))
    disturbed.d.append(Job(disturbed.turn("a", 9000, 3000, output=1), 1.0))
    for world in (quiet, disturbed):
        world.clock.run()
    delay = dict(map(reversed, disturbed.done))["long-0"] - dict(map(reversed, quiet.done))["long-0"]  # type: ignore[arg-type]
    assert delay == pytest.approx(COST.chunk_s + COST.prompt_s(6000, 3000), rel=0.05)


def crowd(world: World, lengths: dict[str, tuple[int, int]]) -> dict[str, Job]:
    jobs = {}
    for name, (prompt, output) in lengths.items():
        jobs[name] = world.through_p(name, prompt, output)
        world.d.transferred(jobs[name])
    return jobs


def test_a_full_pool_retracts_the_request_with_the_fewest_answer_tokens_the_longest_prompt_among_equals() -> None:
    world = World(6000)
    jobs = crowd(world, {"a": (1500, 2500)})
    world.clock.run(1.0)
    jobs |= crowd(world, {"b": (500, 1200), "c": (600, 1200)})
    while not any(job.retractions for job in jobs.values()):
        assert world.clock._due
        world.clock.run(world.clock._due[0][0])
        world.check()
    assert [name for name, job in jobs.items() if job.retractions] == ["c"]
    assert jobs["c"].stage is Stage.RETRACTED and jobs["c"].held == 0


def test_while_a_request_is_retracted_nothing_is_preallocated_or_picked_up() -> None:
    world = World(6000)
    jobs = crowd(world, {"a": (1500, 2500), "b": (500, 1200), "c": (600, 1200)})
    waiting = world.through_p("waiting", 100)
    while not world.d.retracted:
        world.clock.run(world.clock._due[0][0])
    late = world.through_p("late", 100)
    if waiting.stage is Stage.TRANSFER:
        world.d.transferred(waiting)
        assert waiting.stage is Stage.ARRIVED
    assert late.stage is Stage.PREALLOC
    world.clock.run()
    assert not world.failures and {rid for _, rid in world.done} >= {job.rid for job in jobs.values()}


def test_a_retracted_request_comes_back_where_it_was() -> None:
    world = World(6000)
    jobs = crowd(world, {"a": (1500, 2500), "b": (500, 1200), "c": (600, 1200)})
    world.clock.run()
    assert sum(job.retractions for job in jobs.values()) >= 1
    assert {job.generated for job in jobs.values()} == {2500, 1200}
    assert len(world.firsts) == 3 and world.d.used == sum(world.d.idle.values())


def test_the_last_request_of_a_full_pool_is_aborted() -> None:
    """Tokens that a commit has set aside are not there for the request that runs."""
    world = World(4000, admission="commit")
    world.resident("b", 500)
    crowd(world, {"a": (1000, 1900)})
    assert world.ask(world.turn("b", 1700, 500)).can_admit
    world.clock.run()
    assert world.failures == {"a-0": "out_of_memory"}
    world.check()


def test_without_retraction_the_pool_is_overdrawn() -> None:
    world = World(6000, retraction=False)
    jobs = crowd(world, {"a": (1500, 2500), "b": (500, 1200), "c": (600, 1200)})
    most = 0
    while world.clock._due:
        world.clock.run(world.clock._due[0][0])
        most = max(most, world.d.used)
    assert not any(job.retractions for job in jobs.values()) and not world.failures


@pytest.mark.parametrize("when", [0.0, 0.01, 0.05, 0.3, 1.0])
def test_a_dropped_request_leaves_nothing_wherever_it_was(when: float) -> None:
    world = World(20_000)
    world.resident("a", 3000)
    started = world.clock.now
    turn = Job(world.turn("a", 9000, 3000, output=500), 1.0)
    world.d.append(turn)
    plain = world.through_p("p", 3000, output=500)
    world.d.transferred(plain)
    world.clock.run(started + when)
    for job in (turn, plain):
        world.d.drop(job)
        assert job.stage is Stage.GONE
    world.clock.run()
    world.check()
    assert world.d.used == 0 and not world.done[1:]


def test_an_append_takes_its_least_time_where_the_host_launches_each_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    firsts = []
    for least_s in (0.0, 0.5):
        monkeypatch.setattr("test_decode.COST", Cost({**experiment().hardware, "append_s": least_s}, "mooncake"))
        world = World(10_000)
        world.resident("a", 2500)
        began = world.clock.now
        world.d.append(Job(world.turn("a", 2600, 2500), 1.0))
        world.clock.run()
        firsts.append(world.firsts["a-1"] - began)
    assert firsts[0] < 0.1 and firsts[1] == pytest.approx(0.5)


def test_a_refused_turn_is_told_to_wait_for_what_it_would_take_whole_where_nothing_of_it_is_kept() -> None:
    """As the plugin answers: usage after admission counts the history that would have to come again."""
    told: list[float] = []
    world = World(10_000, hint=lambda pressure: told.append(pressure.usage_after) or 0.0)
    world.resident("kept", 2500)
    world.ask(world.turn("kept", 2600, 2500))
    world.ask(world.turn("gone", 2600, 2500))
    assert told == [pytest.approx((2500 + 100 + 512) / 10_000), pytest.approx((2500 + 2600 + 512) / 10_000)]
