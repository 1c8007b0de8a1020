"""What every format turns its records into, and how it reads their fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Literal

Stamp = int | float
INT32_MAX = 2**31 - 1
INT64 = range(-(2**63), 2**63)


class RowError(Exception):
    """A record that cannot become a turn. `column` is the field's name, None where the record as a whole is wrong."""

    def __init__(self, column: str | None, problem: str) -> None:
        self.column, self.problem = column, problem
        super().__init__(problem)


@dataclass(slots=True)
class Row:
    """One request as its file tells it. `time` is in the format's own unit, exact; None everywhere else: the file does not say.

    `session` None: the chain of `parent`s decides, and without one the request is a session of its own.
    The wait before a send is told in one of three ways: `think_s` (before this send, and it counts only where the previous
    answer's `served_s` is known), `served_s` (how long this answer took), or `wait_after_s` (after this answer).
    """

    line: int = field(compare=False)
    time: Stamp
    input_tokens: int
    output_tokens: int
    session: str | None = None
    turn: int | None = None
    chat: str | None = None
    parent: str | None = None
    hash_ids: tuple[int, ...] | None = None
    block_tokens: int | None = None
    prefix_tokens: int | None = None
    think_s: float | None = None
    served_s: float | None = None
    wait_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """One way to write a trace.

    `shape` and `keys` find it: a record (or CSV header) that has all `keys` and none of `lacks`; the format with most keys
    wins. No keys: only by name. `per_second`: stamps a second; None: seconds, or what the size of stamps since 1970 says.
    `session_stamps`: a stamp is the session's start, so that a turn's own is that plus the waits before it.
    """

    name: str
    doc: str
    shape: Literal["json", "csv"]
    rows: Callable[[Record], Iterable[Row]]
    keys: frozenset[str] = frozenset()
    lacks: frozenset[str] = frozenset()
    per_second: int | None = None
    session_stamps: bool = False

    def matches(self, shape: str, keys: set[str]) -> bool:
        return bool(self.keys) and self.shape == shape and self.keys <= keys and not self.lacks & keys


class Record:
    """One record's fields, read with their types checked. `quoted` counts numbers that JSON wrote as text."""

    __slots__ = ("line", "quoted", "textual", "values")

    def __init__(self, line: int, values: dict[str, Any], textual: bool) -> None:
        self.line, self.values, self.textual, self.quoted = line, values, textual, 0

    def has(self, column: str) -> bool:
        return self.values.get(column) not in (None, "")

    def number(self, column: str) -> Stamp:
        """A finite number; whole ones stay exact."""
        value = self.values.get(column)
        if type(value) is int:
            return value
        if isinstance(value, str):
            value = self._unquoted(column, value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RowError(column, "missing" if value is None else f"expected a number, found {_shown(value)}")
        if not isfinite(value):
            raise RowError(column, f"expected a finite number, found {value}")
        return value

    def whole(self, column: str, least: int = 0, most: int = INT32_MAX) -> int:
        """A whole number, also written 512.0; a fraction is an error, never rounded."""
        value = self.number(column)
        if value != int(value):
            raise RowError(column, f"expected a whole number, found {value}")
        if not least <= value <= most:
            raise RowError(column, f"expected a whole number from {least} to {most}, found {int(value)}")
        return int(value)

    def maybe_seconds(self, column: str, per_second: int = 1) -> float | None:
        """A duration of at least 0 in seconds, None where it is absent."""
        if not self.has(column):
            return None
        value = self.number(column)
        if value < 0:
            raise RowError(column, f"expected a duration of at least 0, found {value}")
        return value / per_second

    def id(self, column: str) -> str:
        """An id is text: the number 7 is "7", and "007" is another one."""
        value = self.values.get(column)
        if isinstance(value, str) and value.strip():
            return value
        if type(value) is int:
            return str(value)
        raise RowError(column, "missing" if column not in self.values else f"expected an id (text or a whole number), found {_shown(value)}")

    def maybe_id(self, column: str, none: tuple[str, ...] = ()) -> str | None:
        """None where absent, or where the value is one that means `none`."""
        if not self.has(column):
            return None
        value = self.id(column)
        return None if value in none else value

    def blocks(self, column: str = "hash_ids") -> tuple[int, ...] | None:
        """Ids of the prompt's blocks; None (unknown, never `nothing shared`) where the list is absent, null or empty."""
        value = self.values.get(column)
        if value is None or value == []:
            return None
        if not isinstance(value, list) or not all(type(i) is int for i in value):
            raise RowError(column, f"expected a list of whole numbers, found {_shown(value)}")
        if min(value) not in INT64 or max(value) not in INT64:
            raise RowError(column, "an id does not fit 64 bits")
        return tuple(value)

    def _unquoted(self, column: str, text: str) -> Stamp:
        try:
            value: Stamp = int(text) if text.strip().lstrip("+-").isdecimal() else float(text)
        except ValueError:
            raise RowError(column, "missing" if not text else f"expected a number, found {_shown(text)}") from None
        self.quoted += not self.textual
        return value


def ticks(record: Record, column: str) -> int:
    """A written point of time as whole 100 ns since 1970, so that Azure's seven digits stay apart; UTC where no zone is named."""
    text = str(record.values.get(column) or "")
    head, _, tail = text.strip().replace("Z", "+00:00").partition(".")
    digits = len(tail) - len(tail.lstrip("0123456789"))
    try:
        moment = datetime.fromisoformat(head + tail[digits:])
    except ValueError:
        raise RowError(column, f"expected a time like 2023-11-16 18:17:03.9799600, found {_shown(text)}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 10_000_000 + int(tail[:digits][:7].ljust(7, "0"))


def named(name: str) -> str:
    """A name out of a file as a message shows it: on one line, and short."""
    return name if name.isprintable() and len(name) <= 40 else _shown(name)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
