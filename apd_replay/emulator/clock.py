"""The simulator's clock, driven by the real one: its events happen when their time has come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any

from apd_replay.sim.clock import WORKER, Clock


class RealClock(Clock):
    """Make it inside a running event loop: t = 0 is now. An event sees `now` as its own due time, whenever the loop gets to it, so that
    the model's times do not drift with the host's load. Before anything new is handed to a worker: `catch_up`."""

    __slots__ = ("_loop", "_running", "_t0", "_timer", "_timer_t")

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._t0 = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_t = inf
        self._running = False

    def at(self, t: float, action: Callable[[Any], None], argument: Any = None, priority: int = WORKER) -> None:
        super().at(t, action, argument, priority)
        if not self._running:
            self._arm()

    def catch_up(self) -> None:
        """Everything that is due by now happens; `now` is the real time afterwards."""
        self._running = True
        try:
            real = self._loop.time() - self._t0
            self.run(real)
            self.now = max(self.now, real)
        finally:
            self._running = False
            self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        """One timer, for the event that is due first."""
        t = self._due[0][0] if self._due else inf
        if t == self._timer_t:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_t = t
        self._timer = self._loop.call_at(self._t0 + t, self._ring) if t < inf else None

    def _ring(self) -> None:
        self._timer, self._timer_t = None, inf
        self.catch_up()
