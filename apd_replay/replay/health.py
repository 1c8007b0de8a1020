"""Is the client itself the bottleneck? Its CPU time, the lag of its event loop, and how late turns left, measured during a run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

TICK_S = 0.05
LAG_LIMIT_S = 0.05  # a loop that is this late at its 99th percentile distorts first tokens
LATENESS_LIMIT_S = 0.05
CPU_LIMIT = 0.9  # of one core: the client is one thread


class ClientHealth:
    """`lateness_s` gets, for each request, how long after its due moment the request was written."""

    def __init__(self) -> None:
        self.lateness_s: list[float] = []
        self._lag_s: list[float] = []
        self._cpu_s = time.process_time()
        self._began = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        self._cpu_s, self._began = time.process_time(), time.monotonic()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(loop.time() + TICK_S, self._tick, loop.time() + TICK_S)

    def _tick(self, expected: float) -> None:
        loop = asyncio.get_running_loop()
        self._lag_s.append(loop.time() - expected)
        following = max(expected + TICK_S, loop.time())
        self._timer = loop.call_at(following, self._tick, following)

    def stop(self) -> dict[str, Any]:
        """What run.json keeps under `client`; `saturated` lists the limits that were passed."""
        if self._timer is not None:
            self._timer.cancel()
        cpu_s, wall_s = time.process_time() - self._cpu_s, time.monotonic() - self._began
        share = cpu_s / wall_s if wall_s > 0 else 0.0
        lag, late = _quantiles(self._lag_s), _quantiles(self.lateness_s)
        saturated = [
            *([f"CPU {share:.0%} of a core, limit {CPU_LIMIT:.0%}"] if share > CPU_LIMIT else []),
            *([f"event loop {lag['p99'] * 1000:.0f} ms late at P99, limit {LAG_LIMIT_S * 1000:.0f} ms"] if lag["p99"] > LAG_LIMIT_S else []),
            *([f"requests left {late['p99'] * 1000:.0f} ms late at P99, limit {LATENESS_LIMIT_S * 1000:.0f} ms"] if late["p99"] > LATENESS_LIMIT_S else []),
        ]
        return {"cpu_s": round(cpu_s, 3), "cpu_share": round(share, 4), "loop_lag_s": lag, "dispatch_lateness_s": late, "saturated": saturated}


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {"p50": 0.0, "p99": 0.0, "max": 0.0}
    ordered = sorted(values)
    last = len(ordered) - 1
    return {"p50": round(ordered[round(0.5 * last)], 6), "p99": round(ordered[round(0.99 * last)], 6), "max": round(ordered[-1], 6)}
