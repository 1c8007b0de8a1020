"""Small traces and experiments for the simulator's tests."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from apd_replay import configuration
from apd_replay.configuration import Experiment
from apd_replay.sim import driver
from apd_replay.trace.model import Session, Trace, Turn

ROOT = Path(__file__).parents[2]


@cache
def matrix() -> dict[str, Experiment]:
    return configuration.load(ROOT / "config/config.yaml").experiments


def experiment(kind: str = "kvc", *, mechanisms: dict[str, bool] | None = None, cluster: dict[str, Any] | None = None,
               hardware: dict[str, Any] | None = None, **settings: Any) -> Experiment:
    """E0 (`kvc`) or E6 (`dp`) with changes; few requests, so no start offsets and real gaps unless asked for."""
    found = matrix()[{"kvc": "E0", "dp": "E6"}[kind]]
    merged = {**found.settings, "time_scale": 1, "start_spread_s": 0, **settings, "mechanisms": {**found.settings["mechanisms"], **(mechanisms or {})}}
    return Experiment("T", merged, {**found.cluster, **(cluster or {})}, {**found.hardware, **(hardware or {})})


def session(name: str, prompts: list[int], outputs: int | list[int] = 50, gap_s: float = 1.0, start_s: float = 0.0,
            hash_ids: list[tuple[int, ...]] | None = None, block_size: int | None = None) -> Session:
    answers = [outputs] * len(prompts) if isinstance(outputs, int) else outputs
    turns = []
    for k, tokens in enumerate(prompts):
        shared = min(prompts[k - 1] + answers[k - 1], tokens) if k else None
        turns.append(Turn(name, k, start_s + k * gap_s, gap_s if k else None, "think" if k else None, tokens, answers[k], shared,
                          hash_ids[k] if hash_ids else None, block_size))  # fmt: skip
    return Session(name, tuple(turns))


def trace(*sessions: Session) -> Trace:
    return Trace("tiny", "0" * 64, sessions)


def growing(count: int, turns: int, first: int = 2000, more: int = 1500, **keys: Any) -> Trace:
    """`count` sessions whose prompts grow from turn to turn."""
    return trace(*(session(f"s{k}", [first + k * 100 + t * more for t in range(turns)], **keys) for k in range(count)))


def crowded() -> tuple[Trace, dict[str, Any]]:
    """More KV than the cluster has: evictions, rejections, retractions."""
    return growing(8, 6, more=900, outputs=400, gap_s=0.2), {"cluster": {"kv_pool_tokens": 15_000, "prefill": 1, "decode": 2}}


def run(chosen: Experiment, turns: Trace, out: Path, replicate: int = 1, **keys: Any) -> dict[str, dict[str, Any]]:
    """The rows of `requests.jsonl` by request id."""
    driver.run(chosen, turns, replicate, out, **keys)
    return {row["request_id"]: row for row in map(json.loads, (out / "requests.jsonl").read_text().splitlines())}


def lines(out: Path, log: str, text: str) -> list[str]:
    return [line for line in (out / "logs" / f"{log}.log").read_text().splitlines() if text in line]
