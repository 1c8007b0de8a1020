"""A template compiled for numpy: is each of these lines of this layout, and which numbers does it hold?

Eight bytes are compared, or eight digits turned into a number, as one machine word, for all lines and all fields at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from apd_replay.logs import batch
from apd_replay.logs.templates import Template

Array = Any  # np.ndarray; what it holds is said where it matters

PAD = 512  # bytes behind a block that may be looked at
_ALL = np.uint64((1 << 64) - 1)
_ZEROS, _SIXES, _HIGH = np.uint64(0x3030303030303030), np.uint64(0x0606060606060606), np.uint64(0xF0F0F0F0F0F0F0F0)
_LAST = np.array([((1 << 64) - 1) ^ ((1 << 8 * (8 - n)) - 1) if n else 0 for n in range(9)], np.uint64)  # the last n of eight bytes
_CLOCK_MASK, _CLOCK = np.uint64(0xF0F0FFF0F0FFF0F0), np.uint64(int.from_bytes(b"00:00:00", "little") & 0xF0F0FFF0F0FFF0F0)
_LIMIT = {"used_tokens": 1 << 62}


class Lines:
    """A block's lines: where they start and end, their commas, and the block's bytes as overlapping words of eight."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        padded = np.frombuffer(data + b"\0" * PAD, np.uint8)
        self.words = np.ndarray((len(data) + PAD - 8,), "<u8", padded.data, strides=(1,))
        text = padded[: len(data)]
        self.commas = np.flatnonzero((text == 44) | (text == 10))  # and the newlines: the one behind a line's last comma ends it
        newlines = np.flatnonzero(text[self.commas] == 10)
        self.ends = self.commas[newlines]
        self.starts = np.empty_like(self.ends)
        self.starts[:1] = 0
        self.starts[1:] = self.ends[:-1] + 1
        self.first_comma = np.empty_like(newlines)
        self.first_comma[:1] = 0
        self.first_comma[1:] = newlines[:-1] + 1
        self.comma_count = newlines - self.first_comma
        self.tail = int(self.ends[-1]) + 1 if len(self.ends) else 0  # behind the last newline

    @cached_property
    def text(self) -> str:
        """The block, a character a byte."""
        return self.data.decode("latin-1")


@dataclass
class _Texts:
    """Fixed bytes to compare, a word each: at `offset` from the begin (or the end) of segment `segment`, under `mask` it is `wanted`."""

    words: list[tuple[int, int, Any, Any]]

    @staticmethod
    def of(items: list[tuple[int, int, bytes]]) -> _Texts:
        words = [word for segment, offset, text in items for word in _words(segment, offset, text)]
        return _Texts([(segment, offset, np.uint64(mask), np.uint64(wanted)) for segment, offset, mask, wanted in words])

    def hold(self, words: Array, anchors: Array) -> Array:
        """For each line (column of `anchors`), whether all texts stand where they should."""
        wrong = np.zeros(anchors.shape[1], np.uint64)  # a word at a time for all lines: what is compared stays in the cache
        for segment, offset, mask, wanted in self.words:
            found = words[anchors[segment] + offset]
            found ^= wanted
            if mask != _ALL:
                found &= mask
            wrong |= found
        good: Array = wrong == 0
        return good


def _words(segment: int, offset: int, text: bytes) -> list[tuple[int, int, int, int]]:
    if len(text) < 8:
        return [(segment, offset, (1 << 8 * len(text)) - 1, int.from_bytes(text, "little"))] if text else []
    places = [*range(0, len(text) - 8, 8), len(text) - 8]
    return [(segment, offset + at, (1 << 64) - 1, int.from_bytes(text[at : at + 8], "little")) for at in places]


class Layout:
    """One template, ready to be laid over many lines."""

    def __init__(self, template: Template) -> None:
        self.template = template
        segments = template.segments
        head = segments[0].text
        self.shortest = len(head)
        fixed = [(0, begin, head[begin:end]) for begin, end in _around_time(template, len(head))]
        fixed += [(at, 0, segment.text) for at, segment in enumerate(segments) if at]
        constant = [at for at, segment in enumerate(segments) if segment.decimals is None]
        self._first = _Texts.of([(0, max(0, len(head) - 8), head[-8:]), *((at, max(0, len(segments[at].text) - 8), segments[at].text[-8:]) for at in constant if at)])
        self._texts = _Texts.of(fixed)
        self._tails = _Texts.of([(at, -len(segment.tail), segment.tail) for at, segment in enumerate(segments) if segment.tail])
        self._constant = np.array(constant, np.int64)
        self._constant_length = np.array([len(segments[at].text) + len(segments[at].tail) for at in constant], np.int64).reshape(-1, 1)
        self._numbers = [(decimals, [at for at, s in enumerate(segments) if s.decimals == decimals]) for decimals in sorted({s.decimals for s in segments if s.decimals is not None})]

    def read(self, lines: Lines, which: Array) -> tuple[Array, dict[str, Array]]:
        """Those of the lines `which` that have this layout, and their columns; `rest:KEY` holds (begins, ends) of a value's text."""
        which = which[lines.ends[which] - lines.starts[which] >= self.shortest]
        begins, ends = self._borders(lines, which)
        good = self._first.hold(lines.words, begins)
        if not good.all():
            which = which[good]
            begins, ends = self._borders(lines, which)  # sooner than to pick columns of the first
        if not len(which):
            return which, {}
        good = self._texts.hold(lines.words, begins) & self._tails.hold(lines.words, ends)
        good &= (ends[self._constant] - begins[self._constant] == self._constant_length).all(axis=0)
        columns = {"ts": self._stamps(lines.words, begins[0], good)}
        for decimals, places in self._numbers:
            self._read_numbers(lines.words, begins, ends, decimals, places, good, columns)
        if good.all():
            return which, columns
        return which[good], {name: column[..., good] for name, column in columns.items()}

    def _borders(self, lines: Lines, which: Array) -> tuple[Array, Array]:
        """Begin and end of each segment (row) of each line (column)."""
        count = len(self.template.segments)
        ends = lines.commas[lines.first_comma[which] + np.arange(count).reshape(-1, 1)]
        begins = np.empty_like(ends)
        begins[0] = lines.starts[which]
        begins[1:] = ends[:-1] + 1
        return begins, ends

    def _stamps(self, words: Array, starts: Array, good: Array) -> Array:
        clock = words[starts + self.template.time_at]
        digit = [((clock >> np.uint64(8 * place)) & np.uint64(15)).astype(np.int64) for place in (0, 1, 3, 4, 6, 7)]
        hour, minute, second = digit[0] * 10 + digit[1], digit[2] * 10 + digit[3], digit[4] * 10 + digit[5]
        good &= ((clock & _CLOCK_MASK) == _CLOCK) & (hour <= 23) & (minute <= 59) & (second <= 60)
        good &= (digit[1] <= 9) & (digit[3] <= 9) & (digit[5] <= 9)
        stamps = self.template.midnight + (hour * 3600 + minute * 60 + second)
        if self.template.fraction:
            place, count = self.template.fraction
            figures, fine = numbers(words, starts + (place + count), np.full(len(starts), count), 0)
            good &= fine
            stamps = stamps + figures / 10.0**count
        return stamps

    def _read_numbers(self, words: Array, begins: Array, ends: Array, decimals: int, places: list[int], good: Array, columns: dict[str, Array]) -> None:
        segments = [self.template.segments[at] for at in places]
        stops = ends[places] - np.array([len(s.tail) for s in segments]).reshape(-1, 1)
        starts = begins[places] + np.array([len(s.text) for s in segments]).reshape(-1, 1)
        figures, fine = numbers(words, stops, stops - starts, decimals)
        good &= fine.all(axis=0)
        for row, segment in enumerate(segments):
            if segment.column is None:
                columns[f"rest:{segment.key}"] = np.stack((starts[row], stops[row]))
            elif segment.column in batch.FRACTIONS:
                columns[segment.column] = figures[row].astype(np.float64)
            else:
                good &= figures[row] < _LIMIT.get(segment.column, 1 << 31)
                columns[segment.column] = figures[row]


def _around_time(template: Template, length: int) -> list[tuple[int, int]]:
    """The parts of the head that do not vary."""
    after = template.time_at + 8
    if not template.fraction:
        return [(0, template.time_at), (after, length)]
    place, count = template.fraction
    return [(0, template.time_at), (after, place), (place + count, length)]


def numbers(words: Array, ends: Array, lengths: Array, decimals: int) -> tuple[Array, Array]:
    """The numbers of `lengths` characters that end at `ends`: int64, or float64 with `decimals`; and which of them are numbers.

    At most fifteen digits, so that the digits are a whole number below 2^53 and one division gives what float() gives of the text.
    """
    digits = lengths - 1 if decimals else lengths
    in_word = 7 if decimals else 8
    good = (digits > decimals) & (digits <= 15)
    word = words[ends - 8]
    if decimals:
        good &= ((word >> np.uint64(8 * (7 - decimals))) & np.uint64(255)) == np.uint64(46)
        fraction = _LAST[decimals]
        word = (word & fraction) | ((word << np.uint64(8)) & ~fraction)  # the digits close up over the point
    figures, fine = _eight(word, np.minimum(np.maximum(digits, 0), in_word))
    good &= fine
    if (digits > in_word).any():
        long = np.nonzero(good & (digits > in_word))
        above, fine = _eight(words[ends[long] - 16], digits[long] - in_word)
        good[long] &= fine
        figures[long] += above * 10**in_word
    return (figures / 10.0**decimals if decimals else figures), good


def _eight(word: Array, count: Array) -> tuple[Array, Array]:
    """The last `count` of eight characters as a number, and whether they are digits."""
    digits = (word ^ _ZEROS) & _LAST[count]
    good = ((digits | (digits + _SIXES)) & _HIGH) == 0
    digits = (digits * np.uint64(2561)) >> np.uint64(8)
    digits = ((digits & np.uint64(0x00FF00FF00FF00FF)) * np.uint64(6553601)) >> np.uint64(16)
    return (((digits & np.uint64(0x0000FFFF0000FFFF)) * np.uint64(42949672960001)) >> np.uint64(32)).astype(np.int64), good
