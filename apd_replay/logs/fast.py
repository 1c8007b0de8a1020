"""The quick way through large logs: batch lines of a known layout are read many at a time, all others line by line.

It never decides what a line means. A line is taken only if it is, byte for byte, a layout that the line-by-line parser has read
(templates.py), with digits where that has digits; then the columns follow from it, eight digits in one machine word. All other lines go
to the parser in their order. tests/logs/test_log_fast.py holds both ways against each other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from apd_replay.logs.layout import Array, Layout, Lines
from apd_replay.logs.parser import LogParser
from apd_replay.logs.prefix import rank
from apd_replay.logs.reading import Block
from apd_replay.logs.rest import as_json
from apd_replay.logs.spool import RANKS, REPEATED, Spool
from apd_replay.logs.templates import Template, learn

_MOST_TEMPLATES = 128
_ROUNDS, _PROBES = 8, 4  # lines tried a round for each number of commas
# what most lines between batch lines are; such a line is only counted
_ACCESS = re.compile(rb'\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] INFO:     [\d.]+:\d+ - "(GET|POST) [\w/.?=&-]+ HTTP/1\.1" 200 OK')


@dataclass
class _Found:
    """Lines of a block (`which`, by number from 0) that have a template's layout, and their columns."""

    template: Template
    which: Array
    columns: dict[str, Array]

    def of(self, some: Array) -> _Found:
        return _Found(self.template, self.which[some], {name: column[..., some] for name, column in self.columns.items()})


class FastLane:
    """Reads blocks of one file into `samples`, through `parser` wherever a line is not of a known layout."""

    def __init__(self, parser: LogParser, samples: Spool) -> None:
        self.parser, self.samples = parser, samples
        self.layouts: list[Layout] = []
        self._learnt: set[Template] = set()

    def block(self, parser: LogParser, block: Block) -> None:
        for part in _between_launches(block):
            self._block(parser, part)

    def _block(self, parser: LogParser, block: Block) -> None:
        lines = Lines(block.data)
        free = np.ones(len(lines.starts), bool)
        found = self._match(lines, free)
        role, told_at = parser.role, self._others(lines, free, block, found)
        for part in found:
            shown = part.template.shown or role
            if shown is None and parser.role is not None:  # the role was told in the middle of this block
                for some, its_role in ((part.of(part.which <= told_at), None), (part.of(part.which > told_at), parser.role)):
                    self.samples.add_batch(self._batch(some, lines, block, its_role))
            else:
                self.samples.add_batch(self._batch(part, lines, block, shown))
            parser.counts[part.template.kind] += len(part.which)
            parser.lines["row"] += len(part.which)
            if part.template.tags:
                parser.tags.add(part.template.tags)

    # batch lines ----------------------------------------------------------------------------------------------------

    def _match(self, lines: Lines, free: Array) -> list[_Found]:
        """Lines of known layouts, and of those that can be learnt from this block. `free` is cleared where a line is taken."""
        found: list[_Found] = []
        for layout in self.layouts:
            self._take(layout, lines, free, found)
        for _ in range(_ROUNDS):
            fresh = self._learn(lines, free)
            for layout in fresh:
                self._take(layout, lines, free, found)
            if not fresh:
                break
        return found

    def _take(self, layout: Layout, lines: Lines, free: Array, found: list[_Found]) -> None:
        which = np.flatnonzero(free & (lines.comma_count == layout.template.commas))
        if not len(which):
            return
        which, columns = layout.read(lines, which)
        if len(which):
            free[which] = False
            found.append(_Found(layout.template, which, columns))

    def _learn(self, lines: Lines, free: Array) -> list[Layout]:
        """Layouts of a few of the lines that are still free."""
        out: list[Layout] = []
        left = np.flatnonzero(free & (lines.comma_count >= 3))
        counts = lines.comma_count[left]
        for count in np.unique(counts):
            group = left[counts == count]
            for at in {int(group[len(group) * k // _PROBES]) for k in range(_PROBES)}:
                template = learn(lines.data[lines.starts[at] : lines.ends[at]])
                if template is not None and template not in self._learnt and len(self._learnt) < _MOST_TEMPLATES:
                    self._learnt.add(template)
                    out.append(Layout(template))
        self.layouts += out
        return out

    def _batch(self, part: _Found, lines: Lines, block: Block, role: str | None) -> pa.RecordBatch:
        template, which, rows = part.template, part.which, len(part.which)
        values: dict[str, Any] = dict(part.columns)
        values["line"] = (which + block.first_line).astype(np.int32)
        values["offset"] = lines.starts[which] + block.offset
        fixed: dict[str, Any] = {"file": self.parser.file, "role": role, "kind": template.kind, "launch": self.parser.launch}
        fixed |= {name: rank(template.tags, tag) for name, tag in RANKS.items()}
        out = []
        for field in self.samples.schema:
            name = field.name
            if name == "rest":
                out.append(_rest(template, values, lines, rows))
            elif name in REPEATED:
                text = fixed[name]
                out.append(pa.DictionaryArray.from_arrays(pa.nulls(rows, pa.int32()) if text is None else _array(np.zeros(rows, np.int32), pa.int32()), pa.array([text or ""], pa.string())))
            elif name in fixed:
                out.append(pa.repeat(pa.scalar(fixed[name], field.type), rows))
            elif name in values:
                out.append(_array(values[name], field.type))
            else:
                out.append(pa.nulls(rows, field.type))
        return pa.RecordBatch.from_arrays(out, schema=self.samples.schema)

    # all other lines ------------------------------------------------------------------------------------------------

    def _others(self, lines: Lines, free: Array, block: Block, found: list[_Found]) -> int:
        """The parser reads what is left, in order, told first what the lines taken before each said. Returns the line that told the role."""
        parser, data = self.parser, block.data
        taken = _Taken(found)
        left = np.flatnonzero(free)
        starts, ends = lines.starts.tolist(), lines.ends.tolist()
        told_at = len(starts) if parser.role is None else -1
        accesses, last_access = 0, -1
        for at, before in zip(left.tolist(), np.searchsorted(taken.which, left).tolist(), strict=True):
            start, end = starts[at], ends[at]
            access = _ACCESS.fullmatch(data, start, end)
            if access is not None and parser.first_stamp is not None and (access[1] == b"GET" or parser.has_served_enough):
                accesses, last_access = accesses + 1, at
                continue
            told_at = taken.tell(parser, at, before, told_at)
            if last_access > taken.told and data[start] != 91:  # a line without a stamp may need the time of the line before
                taken.told = last_access
                parser.saw_line(data[starts[last_access] : ends[last_access]])
            seen = parser.stamps_seen
            parser.line(data[start:end], block.first_line + at, block.offset + start)
            if parser.stamps_seen != seen:
                taken.told = at
            if told_at == len(starts) and parser.role is not None:
                told_at = at
        told_at = taken.tell(parser, len(starts), len(taken.which), told_at)
        if last_access > taken.told:
            parser.saw_line(data[starts[last_access] : ends[last_access]])
        parser.lines["known"] += accesses
        if accesses:
            parser.counts["access"] += accesses
        if lines.tail < len(data):
            parser.line(data[lines.tail :], block.first_line + len(starts), block.offset + lines.tail)
        return told_at


class _Taken:
    """What the lines taken of a block say to the ones between them: the time, and once the role."""

    def __init__(self, found: list[_Found]) -> None:
        self.which = np.concatenate([part.which for part in found]) if found else np.empty(0, np.int64)
        order = np.argsort(self.which)
        self.which = self.which[order]
        self.stamps = np.concatenate([part.columns["ts"] for part in found])[order] if found else self.which
        self.shown = min(((int(part.which[0]), part.template.shown) for part in found if part.template.shown), default=None)
        self.roles = {part.template.shown for part in found if part.template.shown}
        self.told = -1  # the line up to which the parser knows the time

    def tell(self, parser: LogParser, at: int, before: int, told_at: int) -> int:
        """Before line `at`, which has `before` taken lines before it. Returns the line that told the role."""
        if before and self.which[before - 1] > self.told:
            self.told = int(self.which[before - 1])
            parser.saw(float(self.stamps[0]))
            parser.saw(float(self.stamps[before - 1]))
        if self.shown is not None and self.shown[0] < at:
            if parser.role is None:
                told_at = self.shown[0]
            parser.tell_role(self.shown[1])
            parser.roles.update(self.roles)
            self.shown = None
        return told_at


def _between_launches(block: Block) -> list[Block]:
    """A server start changes what later lines mean: the block in parts, cut behind each line that may be one."""
    parts, begin, line, at = [], 0, block.first_line, block.data.find(b"server_args=")
    while at >= 0:
        for end in (block.data.rfind(b"\n", begin, at) + 1, block.data.find(b"\n", at) + 1 or len(block.data)):
            if end > begin:
                parts.append(Block(block.data[begin:end], block.offset + begin, line))
                line += block.data.count(b"\n", begin, end)
                begin = end
        at = block.data.find(b"server_args=", begin)
    if begin < len(block.data):
        parts.append(Block(block.data[begin:], block.offset + begin, line) if begin else block)
    return parts


_NUMPY = {pa.int32(): np.int32, pa.int64(): np.int64, pa.float64(): np.float64}


def _array(values: Array, kind: pa.DataType) -> pa.Array:
    """The numbers as an Arrow array, without a copy where the type is right already."""
    values = np.ascontiguousarray(values, _NUMPY[kind])
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _rest(template: Template, values: dict[str, Array], lines: Lines, rows: int) -> pa.DictionaryArray:
    """The values without a column as JSON, the text that the parser would write."""
    units = {s.key: s.unit for s in template.segments if s.key}
    if not template.rest:
        return pa.DictionaryArray.from_arrays(pa.nulls(rows, pa.int32()), pa.array([""], pa.string()))
    if all(text is not None for _, text in template.rest):
        fixed = as_json(dict(template.rest))
        return pa.DictionaryArray.from_arrays(_array(np.zeros(rows, np.int32), pa.int32()), pa.array([fixed]))
    data = lines.data.decode("latin-1")  # the places are ASCII
    spans = {key: values[f"rest:{key}"].tolist() for key, text in template.rest if text is None}
    out = []
    for row in range(rows):
        pairs = {}
        for key, text in template.rest:
            pairs[key] = text if text is not None else data[spans[key][0][row] : spans[key][1][row]] + units[key]
        out.append(as_json(pairs))
    return pa.array(out, pa.string()).dictionary_encode()
