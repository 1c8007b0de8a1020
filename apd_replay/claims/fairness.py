"""May these runs be compared? KVC against DP takes equal GPUs, model, memory and trace.

A stated difference is refused; a value that one side or both do not state is named as a confounder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_SHAPE = re.compile(r"(?:(\d+)p(\d+)d|(\d+)dp)")
_MEMORY = "--mem-fraction-static"


@dataclass(frozen=True)
class Stated:
    """What a run says about what it ran on; None: it does not say."""

    disaggregated: bool | None
    facts: dict[str, str | None]


@dataclass(frozen=True)
class Comparison:
    refused: str | None
    confounders: tuple[str, ...]


def stated(run: dict[str, Any]) -> Stated:
    """`run`: a row of `runs`."""
    config = json.loads(run["config"]) if run.get("config") else {}
    cluster, hardware = _mapping(config, "cluster"), _mapping(config, "hardware")
    shape = _SHAPE.fullmatch(run.get("cluster") or "")
    if cluster:
        gpus, split = sum(cluster.get(k) or 0 for k in ("prefill", "decode", "workers")), bool(cluster.get("decode"))
    elif shape:
        gpus, split = sum(int(g) for g in shape.groups() if g), shape[1] is not None
    else:
        gpus, split = None, None
    return Stated(split, {
        "GPUs": None if gpus is None else str(gpus),
        "model": run.get("model"),
        "memory fraction": _memory(config, cluster, hardware),
        "trace": run.get("trace_digest") or run.get("trace"),
        "hardware": run.get("hardware"),
    })  # fmt: skip


def compare(sides: Sequence[Stated]) -> Comparison:
    """The runs of all experiments that a figure puts together. Only KVC against DP is held to it."""
    if len({s.disaggregated for s in sides if s.disaggregated is not None}) < 2:
        return Comparison(None, ())
    confounders = []
    for fact in sides[0].facts:
        values = {s.facts[fact] for s in sides}
        known = values - {None}
        if len(known) > 1:
            return Comparison(f"refused: KVC and DP differ in {fact} ({' against '.join(sorted(map(str, known)))})", ())
        if None in values:
            confounders.append(f"{fact} is not stated" + (" by all runs" if known else ""))
    return Comparison(None, tuple(confounders))


def _memory(config: dict[str, Any], cluster: dict[str, Any], hardware: dict[str, Any]) -> str | None:
    """The memory fraction of the servers' arguments, or the size of the simulated KV pool."""
    settings = _mapping(config, "settings") or config
    arguments = [*(cluster.get("server_args") or []), *(_mapping(settings, "sglang").get("server_args") or [])]
    for k, argument in enumerate(map(str, arguments)):
        if argument.startswith(_MEMORY):
            return argument.partition("=")[2] or (str(arguments[k + 1]) if k + 1 < len(arguments) else None)
    pool = cluster.get("kv_pool_tokens") or hardware.get("kv_pool_tokens")
    return None if pool is None else f"KV pool of {pool} tokens"


def _mapping(content: dict[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    return value if isinstance(value, dict) else {}
