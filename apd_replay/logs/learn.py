"""Layouts of lines, learnt from a log: what the parser reads in one line, it reads in all that differ in their numbers and ids only.

A line is cut into fixed text and holes (numbers, words with digits in them, hexadecimal ids). The parser is asked what the line means, and
again with other values in each hole, short and long ones, with leading zeros and without: a hole is as wide as the values for which the
answer follows from the first one. What the parser carries from line to line stays out: a line that changes it, or whose meaning depends on
it, has no layout. _scan.c finds lines of known layouts; all others go to the parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from apd_replay.logs.known import GLOG
from apd_replay.logs.parser import LogParser
from apd_replay.logs.prefix import STAMP, epoch

LONGEST = 500  # characters of a message: beyond this the parser keeps a part of it only
_MOST_HOLES = 48
_TABLES = ("samples", "events", "stats")
_PLACE = frozenset({"file", "line", "offset", "launch", "role", "ts", "tags"})
_DATED = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,6})(?!\d))?")
_HOLE = re.compile(r"(?P<decimal>(?<![\w.-])\d+\.\d+(?![\d.]))|(?P<word>(?!^)(?<![\w-])(?!\d+[A-Za-z]{1,4}(?![\w-]))(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]+)|(?P<digits>\d+)", re.ASCII)
# a stamp, a word that may become one, and whatever the parser looks into or JSON writes in its own way
_NEVER = re.compile(r"\[(?:\d+-|\d+:\d+:|[\w-]*[A-Za-z][\w-]*\d|\d[\w-]*[A-Za-z])|^\{|^Finish: |\\", re.ASCII)

STAMPED, DATED, BARE = range(3)  # prefixes, as in _scan.c


@dataclass(frozen=True, slots=True)
class Hole:
    """`digits` (`least` to `most` of them; `zeros`: also with leading zeros), `decimal`, `word`, or `hex` (at least `least` characters)."""

    kind: str
    least: int = 1
    most: int = 19
    zeros: bool = True

    def tests(self) -> tuple[str, ...]:
        return tuple(self._tests())

    def _tests(self) -> Iterator[str]:
        if self.kind == "decimal":
            yield from ("0.0", "7.25", "12345678901234.5", "0.12345678901234", *(("00.50",) if self.zeros else ()))
        elif self.kind == "word":
            yield from ("a1", "0x", "-Z_9-", "1-a", "e9", "1e5", "None0", "x" * 63 + "1")
        elif self.kind == "hex":
            yield from ("abcdef012345", "0123456789abcdef", "1" + "a" * 63)
        elif self.least == self.most:
            yield from ("0" * self.most, "9" * self.most, "1" * self.most)
        else:
            yield from ("0", "5", "9" * (self.most - 1), "9223372036854775807" if self.most == 19 else "9" * self.most)
            if self.zeros:
                yield from ("00", "007", "0" * (self.most - 1) + "1")


@dataclass(frozen=True, slots=True)
class Layout:
    """`texts[i]` stands in front of `holes[i]`, the last one at the end. `columns`: what goes where: `(hole, int or float)`, or a text in pieces
    (of holes by number, or fixed). `counted`, `cls`, `shape`: what the books say of such a line. `shown`: the role that it shows."""

    prefix: int
    texts: tuple[str, ...]
    holes: tuple[Hole, ...]
    cls: str
    counted: tuple[tuple[str, int], ...]
    shape: str | None
    shown: str | None
    table: str | None
    columns: tuple[tuple[str, Any], ...]

    def predict(self, values: list[str]) -> dict[str, Any]:
        """What the parser should put into the row's columns."""
        return {name: _value(what, values) for name, what in self.columns}


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the parser says of one line."""

    cls: str
    counted: tuple[tuple[str, int], ...]
    shape: str | None
    shown: str | None
    table: str | None
    stamp: float | None
    evidence: tuple[int, int]
    columns: dict[str, Any]

    def alike(self, other: _Answer | None) -> bool:
        """Another row of the same kind."""
        return other is not None and self._kind() == other._kind()

    def _kind(self) -> Any:
        return self.cls, self.counted, self.shape, self.shown, self.table, self.stamp, self.evidence, {k: type(v) for k, v in self.columns.items()}


def prefix_of(line: str) -> tuple[int, int, float | None, str]:
    """Which prefix a line has, where its message starts, the stamp and the tags in it."""
    if (match := STAMP.match(line)) is not None and match[1] and line[11] == " " and "," not in match[0]:
        return STAMPED, match.end(), epoch(match[1], match[2], match[3]), match[4]
    if (match := _DATED.match(line)) is not None:
        return DATED, match.end(), epoch(match[1], match[2], match[3]), ""
    return BARE, 0, None, ""


def cut(message: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Texts, and the holes between them as (kind, value). Behind the quote of an access line all is fixed: a status is a word there."""
    limit = message.find('"') if "HTTP/" in message else len(message)
    texts, holes, at = [], [], 0
    for match in _HOLE.finditer(message, 0, max(limit, 0)):
        texts.append(message[at : match.start()])
        holes.append((match.lastgroup or "", match[0]))
        at = match.end()
    return [*texts, message[at:]], holes


def skeleton(line: str) -> Skeleton | None:
    """The line cut up; None: no line like it has a layout."""
    if not (line.isascii() and line.removesuffix("\r").isprintable()):
        return None
    prefix, start, stamp, tags = prefix_of(line)
    message = line[start:]
    if len(message) > LONGEST or _NEVER.search(message) or (".cpp:" in message and not GLOG.match(line)):
        return None
    texts, found = cut(message)
    if (found and not texts[0]) or len(found) > _MOST_HOLES or (prefix != BARE and stamp is None) or (prefix != STAMPED and line.startswith("[")):
        return None
    return Skeleton(prefix, tuple(texts), tuple(kind for kind, _ in found), line[:start], tuple(value for _, value in found), stamp, tags)


@dataclass(frozen=True, slots=True)
class Skeleton:
    """Lines with the same one (the fields up to `kinds`) may have the same layout."""

    prefix: int
    texts: tuple[str, ...]
    kinds: tuple[str, ...]
    head: str = field(compare=False)
    values: tuple[str, ...] = field(compare=False)
    stamp: float | None = field(compare=False)
    tags: str = field(compare=False)


class NotYet(Exception):
    """The parser still needs such lines, for the clocks."""


def learn(line: Skeleton, parser: LogParser) -> Layout | None:
    """The layout of a line that `parser` has just read; None: it has none."""
    return _Search(line).layout(parser)


class _Search:
    """One line, asked about again and again."""

    def __init__(self, line: Skeleton) -> None:
        self.head, self.prefix, self.texts, self.stamp = line.head, line.prefix, list(line.texts), line.stamp
        self.values = list(line.values)
        self.choices = [_choices(kind, value) for kind, value in zip(line.kinds, line.values, strict=True)]

    def layout(self, parser: LogParser) -> Layout | None:
        base = self.ask(self.values)
        if base is None or base.stamp != self.stamp:
            return None
        if not _has_evidence(base, parser):
            raise NotYet
        if self.prefix != STAMPED and base.cls != "known":
            return None  # without a stamp, what is unknown or an event depends on the lines before
        if base.shape is not None and base.shape not in parser.shapes.found:
            return None
        while not self.narrow(lambda values: base.alike(self.ask(values))):
            pass
        layout = self.derive(base)
        while layout is not None and not self.narrow(self.follows_from(layout)):
            layout = self.derive(base)
        if layout is None or not self.holds(layout, base):
            return None
        return replace(layout, holes=tuple(choices[0] for choices in self.choices))

    def follows_from(self, layout: Layout) -> Callable[[list[str]], bool]:
        return lambda values: _is(layout.predict(values), self.ask(values))

    def ask(self, values: list[str], role: str | None = None) -> _Answer | None:
        return _answer((self.head + self.text(values)).encode(), role)

    def text(self, values: list[str]) -> str:
        return "".join(part for pair in zip(self.texts, [*values, ""], strict=True) for part in pair)

    def narrow(self, accepts: Callable[[list[str]], bool]) -> bool:
        """Each hole to the widest choice all of whose tests are accepted. False: there were none for a hole; it became fixed text, or two holes."""
        if all(self.choices) and all(accepts(values) for values in self.together()):
            return True
        for at, choices in enumerate(self.choices):
            while choices and not all(accepts([*self.values[:at], test, *self.values[at + 1 :]]) for test in choices[0].tests()):
                choices.pop(0)
            if choices:
                continue
            if re.fullmatch(r"\d+\.\d+", self.values[at]):  # perhaps two numbers
                self.texts[at + 1 : at + 1] = ["."]
                self.values[at : at + 1] = self.values[at].split(".")
                self.choices[at : at + 1] = [_choices("digits", value) for value in self.values[at : at + 2]]
            else:
                self.texts[at : at + 2] = [self.texts[at] + self.values[at] + self.texts[at + 1]]
                del self.values[at], self.choices[at]
            return False
        return True

    def together(self) -> Iterator[list[str]]:
        """All holes at once, with each one's first test, second test, and so on."""
        tests = [choices[0].tests() for choices in self.choices]
        for k in range(max(map(len, tests), default=0)):
            values = [some[(k + at) % len(some)] for at, some in enumerate(tests)]
            if len(self.text(values)) <= LONGEST:
                yield values

    def derive(self, base: _Answer) -> Layout | None:
        """Which hole is found in which column, by putting a mark into each."""
        marks = [_mark(at, choices[0], value) for at, (choices, value) in enumerate(zip(self.choices, self.values, strict=True))]
        marked = self.ask([mark or value for mark, value in zip(marks, self.values, strict=True)])
        if marked is None or not base.alike(marked):
            return None
        columns: dict[str, tuple[Any, ...]] = {}
        for name, value in marked.columns.items():
            if isinstance(value, str):
                columns[name] = _pieces(value, marks)
            elif (hole := next((at for at, mark in enumerate(marks) if mark and _equals(mark, value)), None)) is not None:
                columns[name] = (hole, type(value))
            else:
                return None
        numbers = [what[0] for what in columns.values() if is_number(what)]
        if len(set(numbers)) < len(numbers):
            return None
        return Layout(self.prefix, tuple(self.texts), (), base.cls, base.counted, base.shape, base.shown, base.table, tuple(columns.items()))

    def holds(self, layout: Layout, base: _Answer) -> bool:
        """The last word: all holes at once, whatever role the log has."""
        for values in [*self.together(), self.values]:
            for role in (None, "prefill", "decode"):
                answer = self.ask(values, role)
                if not base.alike(answer) or not _is(layout.predict(values), answer):
                    return False
        return True


def _choices(kind: str, value: str) -> list[Hole]:
    if kind == "decimal":
        return [Hole("decimal")]
    if kind == "word":
        return [Hole("word"), *([Hole("hex", 12)] if re.fullmatch(r"[0-9a-f]{12,64}", value) else [])]
    lengths = [Hole("digits", 1, most, zeros) for most in (19, 9) for zeros in (True, False)]
    return [*lengths, Hole("digits", len(value), len(value))] if len(value) <= 19 else []


def _mark(at: int, hole: Hole, value: str) -> str | None:
    """A value that no other hole has; None where only values of one length fit."""
    if hole.kind == "digits":
        return str(300_007 + 7_919 * at) if hole.least < hole.most else None
    return {"decimal": f"{100 + at}.{7_919 + at}", "word": f"w{at:02}q", "hex": f"{at:02}{'ab3c' * 7}"}[hole.kind]


def _pieces(text: str, marks: list[str | None]) -> tuple[int | str, ...]:
    """The text as holes (their numbers) and what is between them."""
    numbers = {mark: at for at, mark in enumerate(marks) if mark}
    if not numbers:
        return (text,)
    parts = re.split("(" + "|".join(map(re.escape, numbers)) + ")", text)
    return tuple(numbers.get(part, part) for part in parts if part)


def is_number(what: tuple[Any, ...]) -> bool:
    """Whether a column is (hole, type), and no text."""
    return len(what) == 2 and isinstance(what[1], type)


def _value(what: Any, values: list[str]) -> Any:
    if is_number(what):
        return what[1](values[what[0]])
    return "".join(values[piece] if isinstance(piece, int) else piece for piece in what)


def _equals(mark: str, value: float) -> bool:
    return mark == str(value) or (isinstance(value, float) and mark == str(value).removesuffix(".0"))


def _is(columns: dict[str, Any], answer: _Answer | None) -> bool:
    return answer is not None and columns == answer.columns


def _has_evidence(answer: _Answer, parser: LogParser) -> bool:
    """The first lines that tell something about the clocks are the parser's."""
    served, gaps = answer.evidence
    return (not served or parser.has_served_enough) and (not gaps or parser.has_entry_gaps_enough)


def _answer(raw: bytes, role: str | None) -> _Answer | None:
    """What a parser that has read nothing else, in a log of this role, says; None where it would remember the line."""
    parser = LogParser()
    parser.role = role
    understood = parser.line(raw, 7, 7)
    if len(understood) != 1 or parser.remembers:
        return None
    cls, _, row = understood[0]
    tables = [name for name in _TABLES if getattr(parser, name)]
    shown = next(iter(parser.roles), None)
    if len(tables) != (row is not None) or len(parser.roles) > 1 or parser.stamps_seen > 1:
        return None
    if row is not None and (row["role"] != (shown or role) or row["ts"] != parser.last_stamp):
        return None
    columns = {name: value for name, value in (row or {}).items() if name not in _PLACE and value is not None}
    counted = tuple(sorted(parser.counts.items()))
    shape = next(iter(parser.shapes.found), None)
    return _Answer(cls, counted, shape, shown, tables[0] if tables else None, parser.last_stamp, (len(parser.served), len(parser.entry_gaps)), columns)
