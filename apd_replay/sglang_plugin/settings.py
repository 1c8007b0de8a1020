"""What a worker's plugin is told, through one environment variable: APD_SGLANG_PLUGIN, a JSON object (`{}`: the defaults).

The variable is absent: the plugin sleeps. A second one, APD_SGLANG_EVENTS, names the file that takes the worker's events.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from apd_replay.errors import ApdError
from apd_replay.replay import hints

VARIABLE = "APD_SGLANG_PLUGIN"
EVENTS = "APD_SGLANG_EVENTS"

ADMISSION = ("coupled", "snapshot", "commit")
EVICTION = ("idle_lru", "tiered")
HINTS = ("off", "linear", "composite", "drain")

Hint = Callable[[hints.Pressure], float]  # milliseconds


class SettingsError(ApdError):
    """The variable does not hold what it should."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`admission`: who answers an admission call, and whether it reserves; `eviction`: which sessions may lose their slot;
    `hint`: formula of the recommended pause; `admission_expires_s`: how long an admission keeps the slot for a turn that does not come."""

    admission: str = "coupled"
    eviction: str = "idle_lru"
    hint: str = "off"
    overshoot_per_usage: float = 1000.0
    admission_expires_s: float = 10.0

    @property
    def looks_at_snapshot(self) -> bool:
        """Does the HTTP process answer admissions itself (`commit`: those that it refuses)?"""
        return self.admission != "coupled"

    def pause_ms(self) -> Hint:
        return hints.formula(self.hint, self.overshoot_per_usage)


def read(environment: Mapping[str, str]) -> Settings | None:
    """None: not asked for. Raises SettingsError."""
    text = environment.get(VARIABLE, "")
    if not text:
        return None
    try:
        told = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{VARIABLE} is not JSON: {error}") from None
    if not isinstance(told, dict):
        raise SettingsError(f"{VARIABLE}: expected a JSON object such as {{}}, found {text[:50]}")
    names = [f.name for f in fields(Settings)]
    for key, value in told.items():
        if key not in names:
            raise SettingsError(f"{VARIABLE}: unknown key {key!r}; allowed: {', '.join(names)}")
        allowed = {"admission": ADMISSION, "eviction": EVICTION, "hint": HINTS}.get(key)
        if allowed is not None and value not in allowed:
            raise SettingsError(f"{VARIABLE}: {key} = {value!r} is not allowed; allowed: {', '.join(allowed)}")
        if allowed is None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
            raise SettingsError(f"{VARIABLE}: {key} = {value!r} is not allowed; expected a number above 0")
    return Settings(**told)
