"""Layouts of batch lines, learnt from the lines of a log: fixed text with numbers in between.

A server prints thousands of batch lines of one layout. A line that has exactly the fixed text of a known layout, and digits where that has
digits, means what the line-by-line parser would read in it; fast.py finds such lines many at a time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from apd_replay.logs import batch
from apd_replay.logs.prefix import STAMP, epoch

_LONGEST_TEXT = 256
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,4})?")


@dataclass(frozen=True, slots=True)
class Segment:
    """What lies between two commas: `text`, then perhaps a number, then `tail`.

    `decimals`: None without a number, 0 for a whole one. The number goes to `column`, or with its `unit` to `key` of `rest`.
    """

    text: bytes
    decimals: int | None = None
    tail: bytes = b""
    column: str | None = None
    key: str | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Template:
    """`segments[0].text` starts with the stamp, whose time of day (at `time_at`) and `fraction` (place, digits) vary."""

    segments: tuple[Segment, ...]
    midnight: float
    time_at: int
    fraction: tuple[int, int] | None
    kind: str
    tags: str
    shown: str | None
    rest: tuple[tuple[str, str | None], ...]  # keys without a column, in order, with their text where it is fixed

    @property
    def commas(self) -> int:
        return len(self.segments) - 1


@dataclass(frozen=True, slots=True)
class _Value:
    start: int
    end: int
    key: str
    column: str | None


def learn(raw: bytes) -> Template | None:
    """The layout of a plain, stamped, complete batch line; None for any other line."""
    try:
        line = raw.decode("ascii")
    except UnicodeDecodeError:
        return None
    stamp = STAMP.match(line)
    if stamp is None or not line.isprintable() or "," in stamp[0] or (midnight := epoch(stamp[1], "00:00:00", None)) is None:
        return None
    message = line[stamp.end() :]
    head = batch.HEAD.match(message)
    if head is None or "[" in message[head.end() :] or any(c in message for c in "{'\""):
        return None
    pairs = batch.split(message, head)
    if pairs is None:
        return None
    row, shown = batch.read(message, head, None)
    if row is None or (shown != "prefill" and head[1] == "Prefill" and any(key == batch.AMBIGUOUS for key, _ in pairs)):
        return None  # what the ambiguous key means depends on the lines before
    values = _values(message, head, pairs, stamp.end())
    if values is None:
        return None
    segments, numbers = _segments(line, values)
    if max(len(segment.text) for segment in segments) > _LONGEST_TEXT:
        return None
    rest: list[tuple[str, str | None]] = [("iteration", None)] if head[2] else []
    rest += [(value.key, None if value in numbers else line[value.start : value.end]) for value in values if value.column is None and value.key != "iteration"]
    fraction = (stamp.start(3), len(stamp[3])) if stamp[3] else None
    return Template(tuple(segments), midnight, stamp.start(2), fraction, head[1].lower(), stamp[4].strip(), shown, tuple(rest))


def _values(message: str, head: re.Match[str], pairs: list[tuple[str, str]], base: int) -> list[_Value] | None:
    """Where each value stands in the line, and its column as batch.read gives it."""
    out, taken = [], set[str]()
    if head[2]:
        out.append(_Value(base + head.start(2), base + head.end(2), "iteration", None))
    at = head.end()
    for key, value in pairs:
        at = message.index(f"{key}: {value}", at) + len(key) + 2
        column = batch.COLUMNS[head[1].lower()].get(key)
        if column in taken:
            column = None
        elif column is not None:
            if batch.number(value, column) is None or not _NUMBER.fullmatch(value):
                return None  # this line's value does not fit the column; that of the next one may
            taken.add(column)
        out.append(_Value(base + at, base + at + len(value), key, column))
        at += len(value)
    return out


def _segments(line: str, values: list[_Value]) -> tuple[list[Segment], set[_Value]]:
    """The line cut at its commas, and the values that are numbers of a form that a column of digits can hold."""
    out, numbers, at = [], set[_Value](), 0
    waiting = list(values)
    for part in line.split(","):
        end = at + len(part)
        value = waiting.pop(0) if waiting and waiting[0].end <= end else None
        digits = None
        if value is not None:
            text = line[value.start : value.end]
            unit = "%" if text.endswith("%") and value.column is None else ""
            digits = _NUMBER.fullmatch(text.removesuffix(unit))
        if value is None or digits is None:
            out.append(Segment(part.encode()))
        else:
            numbers.add(value)
            stop = value.end - len(unit)
            decimals = len(digits[0].partition(".")[2])
            out.append(Segment(line[at : value.start].encode(), decimals, line[stop:end].encode(), value.column, None if value.column else value.key, unit))
        at = end + 1
    return out, numbers
