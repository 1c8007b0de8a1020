"""The formats of trace files. A module of this folder that has `FORMATS` is one: nothing else need be told."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from apd_replay.trace.rows import Format


@cache
def formats() -> dict[str, Format]:
    """All formats by name, those with most keys first: the order in which a file's content is tried."""
    found = [f for module in pkgutil.iter_modules(__path__) for f in importlib.import_module(f"{__name__}.{module.name}").FORMATS]
    return {f.name: f for f in sorted(found, key=lambda f: (-len(f.keys), f.name))}
