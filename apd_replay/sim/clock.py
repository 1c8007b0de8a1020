"""Virtual time: what is due next, and nothing of the host's clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

WORKER, CLIENT = 0, 1  # at the same instant workers act first, so that an answer frees what the next turn needs


class Clock:
    """A heap of (time, priority, sequence, action, argument): equal keys always run in the same order. Times in seconds."""

    __slots__ = ("_due", "_sequence", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._sequence = 0
        self._due: list[tuple[float, int, int, Callable[[Any], None], Any]] = []

    def at(self, t: float, action: Callable[[Any], None], argument: Any = None, priority: int = WORKER) -> None:
        """Call `action(argument)` at `t`; a time already gone means now."""
        self._sequence += 1
        heappush(self._due, (t if t > self.now else self.now, priority, self._sequence, action, argument))

    def run(self, until: float = float("inf"), after_each: Callable[[], None] | None = None) -> bool:
        """Let time pass up to `until`, or to the last event. True: there is more. `after_each` sees the state after every event."""
        due = self._due
        while due:
            if due[0][0] > until:
                self.now = until
                return True
            self.now, _, _, action, argument = heappop(due)
            action(argument)
            if after_each is not None:
                after_each()
        return False


class Deadlines:
    """One deadline for everyone, `limit_s` after its start: first in, first due, so that one event stands for all of them.

    `expired(item)` is called for an item whose deadline has come while `waiting(item, since)` still holds.
    """

    __slots__ = ("_armed", "_clock", "_expired", "_items", "_limit_s", "_waiting")

    def __init__(self, clock: Clock, limit_s: float, waiting: Callable[[Any, float], bool], expired: Callable[[Any], None]) -> None:
        self._clock, self._limit_s, self._waiting, self._expired = clock, limit_s, waiting, expired
        self._items: deque[tuple[float, Any]] = deque()
        self._armed = False

    def start(self, item: Any) -> None:
        self._items.append((self._clock.now, item))
        if not self._armed:
            self._arm()

    def _arm(self) -> None:
        self._armed = True
        self._clock.at(self._items[0][0] + self._limit_s, self._check)

    def _check(self, _: None) -> None:
        self._armed = False
        items, now = self._items, self._clock.now
        while items:
            since, item = items[0]
            if not self._waiting(item, since):
                items.popleft()
            elif since + self._limit_s <= now:
                items.popleft()
                self._expired(item)
            else:
                break
        if items and not self._armed:
            self._arm()
