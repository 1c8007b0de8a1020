"""Lines that no rule knows, counted by shape: the line with numbers, ids and quoted text replaced."""

from __future__ import annotations

import re
from dataclasses import dataclass

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_ID = re.compile(r"\b(?:0x[0-9a-fA-F]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?=[a-f]*[0-9])[0-9a-f]{12,})\b")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_LENGTH, EXAMPLE_LENGTH = 160, 300
_MOST_SHAPES = 10_000  # a file of garbage has a shape a line: beyond this they share one entry
OTHER = "(other shapes)"


@dataclass(slots=True)
class Shape:
    count: int
    example: str
    line: int


def shape(message: str) -> str:
    text = _QUOTED.sub("~", message[:1000])
    return _NUMBER.sub("N", _ID.sub("H", text))[:_LENGTH]


class Shapes:
    """Counts of one log file."""

    def __init__(self) -> None:
        self.found: dict[str, Shape] = {}

    def add(self, message: str, line: int) -> None:
        key = shape(message)
        if key not in self.found and len(self.found) >= _MOST_SHAPES:
            key = OTHER
        known = self.found.get(key)
        if known is None:
            self.found[key] = Shape(1, message[:EXAMPLE_LENGTH], line)
        else:
            known.count += 1
