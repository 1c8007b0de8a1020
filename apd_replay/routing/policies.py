"""Policies by the names that an experiment uses. A new one: a module here with one class, a line below, a test."""

from __future__ import annotations

from apd_replay.configuration import Experiment
from apd_replay.errors import ConfigError
from apd_replay.routing.cache_aware import CacheAware
from apd_replay.routing.capacity_aware import CapacityAware
from apd_replay.routing.kv_aware import KvAware
from apd_replay.routing.link_aware import LinkAwarePrefill
from apd_replay.routing.migrating import Migrating
from apd_replay.routing.round_robin import RoundRobin, RoundRobinPrefill
from apd_replay.routing.view import DecodePolicy, PrefillPolicy


def decode_policy(experiment: Experiment, block_tokens: int | None) -> DecodePolicy:
    """Who chooses the D, or the unified worker. `block_tokens`: tokens a block of the trace's hash ids."""
    policy = _first_choice(experiment, block_tokens)
    return Migrating(policy) if experiment["migration"] else policy


def _first_choice(experiment: Experiment, block_tokens: int | None) -> DecodePolicy:
    name = experiment["policy"]
    if name == "kv_aware":
        return KvAware()
    if name == "capacity_aware":
        return CapacityAware(block_tokens)
    if name == "round_robin":
        return RoundRobin()
    if name == "cache_aware":
        return CacheAware(block_tokens=block_tokens)
    raise ConfigError(f"experiment {experiment.id}", "policy", f"{name!r} is not built yet; built: kv_aware, capacity_aware, round_robin, cache_aware")


def prefill_policy(experiment: Experiment) -> PrefillPolicy | None:
    """Who chooses the P; None where the cluster has none."""
    if not experiment.disaggregated:
        return None
    name = experiment["prefill_policy"]
    if name == "round_robin":
        return RoundRobinPrefill()
    if name == "link_aware":
        return LinkAwarePrefill()
    raise ConfigError(f"experiment {experiment.id}", "prefill_policy", f"{name!r} is not built yet; built: round_robin, link_aware")
