"""SGLang router's cache_aware policy: imbalance, match, else the least loaded."""

from __future__ import annotations

import pytest
from routing_turn import Turn

from apd_replay.routing.cache_aware import CacheAware
from apd_replay.routing.view import ClusterView, WorkerView


def view(*loads: int) -> ClusterView:
    return ClusterView([WorkerView(f"worker-{i}", inflight=load) for i, load in enumerate(loads)], [])


def send(policy: CacheAware, prompt: Turn, cluster: ClusterView) -> int:
    worker = policy.choose(prompt, cluster, None)
    policy.sent(prompt, worker)
    return worker


def test_a_miss_goes_to_the_least_loaded_and_among_equals_to_the_smallest_tree() -> None:
    policy = CacheAware()
    assert send(policy, Turn("a"), view(1, 0, 1)) == 1
    assert send(policy, Turn("b"), view(0, 0, 1)) == 0
    assert send(policy, Turn("c"), view(0, 0, 0)) == 2  # the only one that holds nothing


def test_a_session_comes_back_to_the_worker_that_was_sent_its_history() -> None:
    policy = CacheAware()
    home = send(policy, Turn("a"), view(3, 0, 3))
    assert send(policy, Turn("a", 1, 1500, shared_tokens=1010), view(0, 9, 0)) == home


@pytest.mark.parametrize(("shared", "stays"), [(301, True), (300, False)])
def test_only_a_match_above_the_threshold_counts(shared: int, stays: bool) -> None:
    policy = CacheAware(cache_threshold=0.3)
    home = send(policy, Turn("a"), view(1, 0))
    assert (send(policy, Turn("a", 1, 1000, shared_tokens=shared), view(0, 9)) == home) is stays


@pytest.mark.parametrize(("loads", "chosen"), [((64, 0), 0), ((65, 0), 1), ((200, 135), 0), ((200, 133), 1)])
def test_loads_far_apart_override_the_match(loads: tuple[int, int], chosen: int) -> None:
    """More than 64 apart, and the longest queue more than 1.5 times the shortest."""
    policy = CacheAware()
    assert send(policy, Turn("a"), view(0, 1)) == 0
    assert policy.choose(Turn("a", 1, 1100, shared_tokens=1010), view(*loads), None) == chosen


def test_another_session_with_the_same_blocks_matches() -> None:
    policy = CacheAware(block_tokens=512)
    send(policy, Turn("a", input_tokens=1536, hash_ids=(1, 2, 3)), view(1, 0))
    assert send(policy, Turn("b", input_tokens=1536, hash_ids=(1, 2, 9)), view(0, 5)) == 1
    assert send(policy, Turn("c", input_tokens=1536, hash_ids=(7, 2, 3)), view(0, 5)) == 0  # a match starts at the head


def test_the_tree_forgets_the_oldest_beyond_its_limit() -> None:
    policy = CacheAware(max_tree_tokens=2500)
    for name in "abc":
        assert send(policy, Turn(name), view(0, 1)) == 0
    assert policy.choose(Turn("a", 1, 1100, shared_tokens=1010), view(1, 0), None) == 1
    assert policy.choose(Turn("c", 1, 1100, shared_tokens=1010), view(1, 0), None) == 0
