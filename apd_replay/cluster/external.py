"""Servers that somebody else runs: their addresses from the configuration, nothing started and nothing stopped."""

from __future__ import annotations

import time
from typing import Any

import httpx

from apd_replay.configuration import Experiment
from apd_replay.errors import RunError
from apd_replay.replay.client import Address
from apd_replay.replay.http import PrefillTarget, Targets

FORMS = "{workers: [URL, ...]}, {router: URL, workers: [URL, ...]} or {prefill: [{url: URL, bootstrap_port: N}, ...], decode: [URL, ...]}"
FLUSH_LIMIT_S = 60.0  # a server empties its cache only once it has nothing left to do


def targets(experiment: Experiment, given: dict[str, Any]) -> Targets:
    """Raises RunError where the addresses do not fit the experiment's cluster."""
    if unknown := set(given) - {"workers", "router", "prefill", "decode", "logs", "flush"}:
        raise RunError(f"experiment {experiment.id}: sglang.external has {', '.join(sorted(unknown))}; expected {FORMS}")
    prefill = []
    for p in given.get("prefill", []):
        if not isinstance(p, dict) or not isinstance(p.get("bootstrap_port"), int) or "url" not in p:
            raise RunError(f"experiment {experiment.id}: sglang.external.prefill: {p!r} has no url and bootstrap_port; expected {FORMS}")
        at = Address.of(p["url"])
        prefill.append(PrefillTarget(at, p.get("bootstrap_host", at.host), p["bootstrap_port"]))
    decode = [Address.of(url) for url in given.get("decode" if experiment.disaggregated else "workers", [])]
    for what, found, wanted in (("prefill", len(prefill), experiment.cluster["prefill"]),
                                ("decode" if experiment.disaggregated else "workers", len(decode), experiment.cluster["decode"] or experiment.cluster["workers"])):
        if found != wanted:
            raise RunError(f"experiment {experiment.id}: sglang.external names {found} {what}, cluster {experiment['cluster']} has {wanted}; expected {FORMS}")
    return Targets(tuple(decode), tuple(prefill), Address.of(given["router"]) if given.get("router") else None)


def flush(targets: Targets) -> None:
    """Empty the caches of all workers, so that a run finds nothing of the one before. Raises RunError."""
    deadline = time.monotonic() + FLUSH_LIMIT_S
    for at in [*(p.address for p in targets.prefill), *targets.decode]:
        found = "no answer"
        while True:
            try:
                answer = httpx.post(f"{at.url}/flush_cache", timeout=max(1.0, deadline - time.monotonic()))
                found = f"HTTP {answer.status_code} {answer.text[:200]}"
                if answer.status_code == 200:
                    break
            except httpx.HTTPError as error:
                found = str(error) or type(error).__name__
            if time.monotonic() > deadline:
                raise RunError(f"{at.url} does not empty its cache within {FLUSH_LIMIT_S:g} s: {found}")
            time.sleep(0.2)


def described(targets: Targets) -> dict[str, Any]:
    name = "decode" if targets.prefill else "worker"
    return {**{f"prefill-{i}": {"role": "prefill", "url": p.address.url, "bootstrap_port": p.bootstrap_port} for i, p in enumerate(targets.prefill)},
            **{f"{name}-{i}": {"url": at.url} for i, at in enumerate(targets.decode)},
            **({"router": {"role": "router", "url": targets.router.url}} if targets.router else {})}  # fmt: skip
