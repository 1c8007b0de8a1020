"""The named policies, and what the two simple ones promise."""

from __future__ import annotations

from pathlib import Path

import pytest
from routing_turn import Turn

from apd_replay import configuration
from apd_replay.configuration import Experiment
from apd_replay.errors import ConfigError
from apd_replay.routing.kv_aware import KvAware
from apd_replay.routing.policies import decode_policy, prefill_policy
from apd_replay.routing.round_robin import RoundRobin, RoundRobinPrefill
from apd_replay.routing.view import ClusterView, WorkerView

ROOT = Path(__file__).parents[2]
MATRIX = configuration.load(ROOT / "config/config.yaml").experiments
CLUSTER = ClusterView([WorkerView(f"decode-{i}") for i in range(3)], [WorkerView("prefill-0"), WorkerView("prefill-1")])


def experiment(name: str, **changes: object) -> Experiment:
    found = MATRIX[name]
    return Experiment(found.id, {**found.settings, **changes}, found.cluster, found.hardware)


def test_every_built_policy_is_made_by_its_name() -> None:
    assert type(decode_policy(experiment("E0"), None)) is KvAware
    assert type(decode_policy(experiment("E0", policy="round_robin"), None)) is RoundRobin
    assert type(prefill_policy(experiment("E0"))) is RoundRobinPrefill
    assert prefill_policy(experiment("E6")) is None


@pytest.mark.parametrize(("key", "make"), [("policy", lambda e: decode_policy(e, None)), ("prefill_policy", prefill_policy)])
def test_an_unknown_policy_is_refused_by_name(key: str, make: object) -> None:
    with pytest.raises(ConfigError, match=rf"experiment E0: {key}: 'nobody' is not built yet"):
        make(experiment("E0", **{key: "nobody"}))  # type: ignore[operator]


def test_kv_aware_keeps_a_session_for_ever_and_spreads_new_ones() -> None:
    policy = KvAware()
    assert [policy.choose(Turn(f"s{k}"), CLUSTER, None) for k in range(6)] == [0, 1, 2, 0, 1, 2]
    assert policy.choose(Turn("s1", 5), CLUSTER, 1) == policy.rejected(Turn("s1", 5), CLUSTER, 1) == 1


def test_kv_aware_follows_the_longest_overlap_blind_to_load() -> None:
    policy = KvAware()
    policy.sent(Turn("a", hash_ids=(1, 2, 3)), 2)
    policy.sent(Turn("b", hash_ids=(1, 7)), 1)
    assert policy.choose(Turn("c", hash_ids=(1, 2, 9)), CLUSTER, None) == 2
    assert policy.choose(Turn("d", hash_ids=(1, 7, 9)), CLUSTER, None) == 1


def test_round_robin_takes_every_worker_in_turn() -> None:
    policy, prefill = RoundRobin(), RoundRobinPrefill()
    assert [policy.choose(Turn(), CLUSTER, 0) for _ in range(4)] == [0, 1, 2, 0]
    assert [prefill.choose(Turn(), CLUSTER, 0) for _ in range(3)] == [0, 1, 0]
