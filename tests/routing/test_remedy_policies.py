"""F1 (capacity), F2 (migration) and F5 (links): each policy alone."""

from __future__ import annotations

import pytest
from routing_turn import Turn

from apd_replay.routing.capacity_aware import CapacityAware
from apd_replay.routing.kv_aware import KvAware
from apd_replay.routing.link_aware import PROBE_S, LinkAwarePrefill
from apd_replay.routing.migrating import Migrating
from apd_replay.routing.room import FRESH_S, free_tokens, shortfall_tokens
from apd_replay.routing.view import ClusterView, Load, WorkerView


def view(*kept: int, pool: int = 10_000, now: float = 100.0) -> ClusterView:
    """D's with one resident session of so many tokens each, and two P's."""
    decode = [WorkerView(f"decode-{d}", pool_tokens=pool, resident={f"other-{d}": tokens} if tokens else {}) for d, tokens in enumerate(kept)]
    return ClusterView(decode, [WorkerView("prefill-0"), WorkerView("prefill-1")], now)


def test_free_tokens_are_the_books_unless_the_d_says_more_and_lately() -> None:
    cluster = view(6000)
    worker = cluster.decode[0]
    worker.inflight_tokens = 1000
    assert free_tokens(worker, 100.0) == 3000
    assert free_tokens(worker, 100.0, but="other-0") == 9000
    worker.load = Load(99.5, available_tokens=5000)
    assert free_tokens(worker, 99.5 + FRESH_S) == 5000
    assert free_tokens(worker, 99.6 + FRESH_S) == 3000
    worker.load = Load(99.5, available_tokens=10)  # what idle sessions hold is not free, but the books know of it already
    assert free_tokens(worker, 100.0) == 3000


def test_shortfall_counts_prompt_and_answer() -> None:
    assert [shortfall_tokens(Turn(input_tokens=3995), w, 0.0) for w in view(6000, 5000, 0).decode] == [5, 0, 0]


def test_capacity_aware_takes_the_d_that_must_evict_least() -> None:
    assert CapacityAware(512).choose(Turn(input_tokens=5000), view(9000, 6000, 7000), None) == 1


def test_capacity_aware_weighs_overlap_against_what_it_displaces() -> None:
    """Blind to capacity, the D that holds the head would win whatever it costs."""
    policy, blind = CapacityAware(512), KvAware()
    for p in (policy, blind):
        p.sent(Turn("a", hash_ids=(1, 2)), 0)
    new = Turn("b", input_tokens=4000, hash_ids=(1, 2, 3))
    assert policy.choose(new, view(6500, 6000), None) == 0  # 1,024 tokens known, 510 to displace
    assert policy.choose(new, view(9000, 6000), None) == 1
    assert blind.choose(new, view(9000, 6000), None) == 0


def test_capacity_aware_counts_what_is_queued_and_spreads_equals() -> None:
    cluster = view(0, 0, 0)
    cluster.decode[0].inflight_tokens = 4000
    cluster.decode[1].load = Load(0.0, transfer_queue=3)
    assert CapacityAware(None).choose(Turn(), cluster, None) == 2
    cluster = view(0, 0)
    cluster.decode[0].resident["small"] = 1
    assert CapacityAware(None).choose(Turn(), cluster, None) == 1


def test_capacity_aware_leaves_a_session_at_home() -> None:
    assert CapacityAware(None).choose(Turn(turn=3), view(10_000, 0), 0) == CapacityAware(None).rejected(Turn(turn=3), view(10_000, 0), 0) == 0


def test_a_session_moves_only_when_refused_and_only_where_it_displaces_less() -> None:
    policy = Migrating(KvAware())
    turn = Turn(turn=4, input_tokens=5000)
    assert policy.choose(turn, view(9000, 0), 0) == 0  # home would take it: cheaper than any move
    assert policy.rejected(turn, view(9000, 2000), 0) == 1
    assert policy.rejected(turn, view(9000, 9000), 0) == 0


@pytest.mark.parametrize(("there", "moves"), [(8000, False), (7000, True)])
def test_a_move_must_save_a_quarter_of_the_prompt(there: int, moves: bool) -> None:
    """Home is short of 4,010 tokens; 3,010 elsewhere saves a fifth of 5,000, 2,010 two fifths."""
    assert (Migrating(KvAware()).rejected(Turn(turn=1, input_tokens=5000), view(9000, there), 0) == 1) is moves


def test_the_first_home_is_the_wrapped_policy_s_choice() -> None:
    policy = Migrating(KvAware())
    policy.sent(Turn("a", hash_ids=(1, 2)), 1)
    assert policy.choose(Turn("b", hash_ids=(1, 2)), view(0, 9000), None) == 1


def test_a_failed_link_is_avoided_until_one_request_may_probe_it() -> None:
    cluster, policy = view(0, 0), LinkAwarePrefill()
    cluster.link(0, 1).failed_t = 100.0
    assert {policy.choose(Turn(), cluster, 1) for _ in range(4)} == {1}
    assert {policy.choose(Turn(), cluster, 0) for _ in range(4)} == {0, 1}  # another D's link works
    cluster.now = 100.0 + PROBE_S
    cluster.link(1, 0).inflight = 5
    assert policy.choose(Turn(), cluster, 1) == 0  # the probe
    cluster.link(0, 1).inflight = 1
    cluster.link(1, 0).inflight = 9
    assert policy.choose(Turn(), cluster, 1) == 1  # one at a time
    cluster.link(0, 1).inflight, cluster.link(0, 1).succeeded_t = 0, 131.0
    assert policy.choose(Turn(), cluster, 1) == 0


def test_among_links_that_work_the_p_with_the_fewest_transfers() -> None:
    cluster, policy = view(0, 0), LinkAwarePrefill()
    cluster.link(0, 0).inflight = 2
    cluster.link(1, 1).inflight = 1
    assert [policy.choose(Turn(), cluster, 0) for _ in range(2)] == [1, 1]
    cluster.link(1, 0).inflight = 1
    assert {policy.choose(Turn(), cluster, 0) for _ in range(2)} == {0, 1}


def test_where_all_links_failed_the_one_that_failed_first_is_tried() -> None:
    cluster = view(0)
    cluster.link(0, 0).failed_t, cluster.link(1, 0).failed_t = 99.0, 98.0
    assert LinkAwarePrefill().choose(Turn(), cluster, 0) == 1
