"""The quick way through large logs: batch lines of a known layout are read many at a time, all others line by line.

It never decides what a line means. A line is taken only if it is, byte for byte, a layout that the line-by-line parser has read
(templates.py), with digits where that has digits; then the columns follow from it, eight digits in one machine word. All other lines go
to the parser in their order. tests/logs/test_log_fast.py holds both ways against each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np

from apd_replay.logs import messages
from apd_replay.logs.layout import Array, Layout, Lines
from apd_replay.logs.messages import Form, Read
from apd_replay.logs.parser import LogParser
from apd_replay.logs.prefix import rank
from apd_replay.logs.reading import Block
from apd_replay.logs.rest import as_json
from apd_replay.logs.spool import RANKS, Spool
from apd_replay.logs.templates import Template, learn

_MOST_TEMPLATES = 128
_ROUNDS, _PROBES = 8, 4  # lines tried a round for each number of commas
_BARE, _LONGEST_PREFIX = 22, 80  # characters of `[2026-05-05 16:00:03] `, and of one with tags
_TWO_BYTES, _CLOSED = np.uint64(0xFFFF), np.uint64(int.from_bytes(b"] ", "little"))


@dataclass
class _Found:
    """Lines of a block (`which`, by number from 0) that have a template's layout, and their columns."""

    template: Template
    which: Array
    columns: dict[str, Array]

    def of(self, some: Array) -> _Found:
        return _Found(self.template, self.which[some], {name: column[..., some] for name, column in self.columns.items()})


class FastLane:
    """Reads blocks of one file into the spools, through `parser` wherever a line is not of a known layout or form."""

    def __init__(self, parser: LogParser, samples: Spool, events: Spool, stats: Spool) -> None:
        self.parser, self.samples, self.events, self.stats = parser, samples, events, stats
        self.layouts: list[Layout] = []
        self._learnt: set[Template] = set()

    def block(self, parser: LogParser, block: Block) -> None:
        for part in _between_launches(block):
            self._block(parser, part)

    def _block(self, parser: LogParser, block: Block) -> None:
        lines = Lines(block.data)
        free = np.ones(len(lines.starts), bool)
        found = self._match(lines, free)
        reads = self._messages(lines, free, block)
        role, told_at = parser.role, self._others(lines, free, block, _Taken(found, reads))
        for part in found:
            shown = part.template.shown or role
            if shown is None and parser.role is not None:  # the role was told in the middle of this block
                for some, its_role in ((part.of(part.which <= told_at), None), (part.of(part.which > told_at), parser.role)):
                    self._add(some, lines, block, its_role)
            else:
                self._add(part, lines, block, shown)
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

    def _add(self, part: _Found, lines: Lines, block: Block, role: str | None) -> None:
        template, rows = part.template, len(part.which)
        columns: dict[str, Any] = {**part.columns, **self._places(part.which, lines, block), "role": role, "kind": template.kind}
        columns |= {name: rank(template.tags, tag) for name, tag in RANKS.items()}
        columns["rest"] = _rest(template, part.columns, lines, rows)
        self.samples.add_columns(rows, columns)

    def _places(self, which: Array, lines: Lines, block: Block) -> dict[str, Any]:
        return {"file": self.parser.file, "launch": self.parser.launch, "line": which + block.first_line, "offset": lines.starts[which] + block.offset}

    # messages -------------------------------------------------------------------------------------------------------

    def _messages(self, lines: Lines, free: Array, block: Block) -> list[Read]:
        """Messages that are read many at a time. `free` is cleared where a line is taken."""
        out = []
        for head, (which, places) in _by_head(lines, free).items():
            forms = [form for form in messages.HEADS[head] if len(which) and self._may(form)]
            text = lines.text if forms else ""
            texts = [text[start:end] for start, end in zip(lines.starts[which].tolist(), lines.ends[which].tolist(), strict=True)] if forms else []
            for form in forms:
                read = messages.read(form, which.tolist(), texts, places)
                if read is not None:
                    free[read.at] = False
                    out.append(read)
                    self._keep(read, lines, block)
                    still = free[which].tolist()
                    which, texts, places = which[still], list(compress(texts, still)), list(compress(places, still))
        self._count_glog(lines, free)
        return out

    def _count_glog(self, lines: Lines, free: Array) -> None:
        """Mooncake's lines, unless one may be the second half of a failure's line."""
        left = np.flatnonzero(free)
        starts, ends = lines.starts[left], lines.ends[left]
        data = lines.data
        if self.parser.unexplained is not None or any(b"failed for request" in data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)):
            return
        space = ((lines.words[starts] >> np.uint64(40)) & np.uint64(255)) == 32
        plain = [at for at in left[space].tolist() if messages.is_plain_glog(lines.text[lines.starts[at] : lines.ends[at]])]
        free[plain] = False
        self.parser.lines["known"] += len(plain)
        for name in ("glog", "Mooncake") if plain else ():
            self.parser.counts[name] += len(plain)

    def _may(self, form: Form) -> bool:
        """Evidence for the clocks is gathered by the parser, and a row's role must be known."""
        parser = self.parser
        if form.name == "access":
            return parser.has_served_enough
        return parser.role is not None and (form.table != "stats" or parser.has_entry_gaps_enough)

    def _keep(self, read: Read, lines: Lines, block: Block) -> None:
        parser, rows = self.parser, len(read.at)
        parser.counts.update(read.counts)
        parser.lines["row" if read.form.table else "known"] += rows
        parser.tags.update(tags for tags in set(read.tags) if tags)
        parser.roles.update(read.sides)
        if not read.form.table:
            return
        columns = {**read.columns, **self._places(np.array(read.at), lines, block), "ts": read.stamps}
        columns["role"] = [role or parser.role for role in columns["role"]] if "role" in columns else parser.role
        (self.events if read.form.table == "events" else self.stats).add_columns(rows, columns)

    # all other lines ------------------------------------------------------------------------------------------------

    def _others(self, lines: Lines, free: Array, block: Block, taken: _Taken) -> int:
        """The parser reads what is left, in order, told first what the lines taken before each said. Returns the line that told the role."""
        parser, data = self.parser, block.data
        left = np.flatnonzero(free)
        starts, ends = lines.starts[left].tolist(), lines.ends[left].tolist()
        told_at = len(lines.starts) if parser.role is None else -1
        for at, start, end, before in zip(left.tolist(), starts, ends, np.searchsorted(taken.which, left).tolist(), strict=True):
            told_at = taken.tell(parser, at, before, told_at)
            seen = parser.stamps_seen
            parser.line(data[start:end], block.first_line + at, block.offset + start)
            if parser.stamps_seen != seen:
                taken.told = at
            if told_at == len(lines.starts) and parser.role is not None:
                told_at = at
        told_at = taken.tell(parser, len(lines.starts), len(taken.which), told_at)
        if lines.tail < len(data):
            parser.line(data[lines.tail :], block.first_line + len(lines.starts), block.offset + lines.tail)
        return told_at


class _Taken:
    """What the lines taken of a block say to the ones between them: the time, and once the role."""

    def __init__(self, found: list[_Found], reads: list[Read]) -> None:
        which = [part.which for part in found] + [np.array(read.at) for read in reads]
        stamps = [part.columns["ts"] for part in found] + [np.array(read.stamps) for read in reads]
        self.which = np.concatenate(which) if which else np.empty(0, np.int64)
        order = np.argsort(self.which)
        self.which = self.which[order]
        self.stamps = np.concatenate(stamps)[order] if stamps else self.which
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


def _by_head(lines: Lines, free: Array) -> dict[bytes, tuple[Array, list[int]]]:
    """Stamped lines by the first characters of their message: line numbers, and where the message starts in each."""
    left = np.flatnonzero(free)
    starts = lines.starts[left]
    bare = (lines.words[starts + _BARE - 2] & _TWO_BYTES) == _CLOSED
    heads = lines.words[starts + _BARE]
    tagged: dict[bytes, list[tuple[int, int]]] = {}
    data = lines.data
    for at, start in zip(left[~bare].tolist(), starts[~bare].tolist(), strict=True):
        message = data.find(b"] ", start, start + _LONGEST_PREFIX) + 2
        if message > _BARE and data[start] == 91:
            tagged.setdefault(data[message : message + messages.HEAD], []).append((at, message - start))
    out = {}
    for head in messages.HEADS:
        which = left[bare & (heads == int.from_bytes(head, "little"))]
        other = tagged.get(head, [])
        out[head] = np.append(which, np.array([at for at, _ in other], np.int64)), [_BARE] * len(which) + [place for _, place in other]
    return out


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


def _rest(template: Template, values: dict[str, Array], lines: Lines, rows: int) -> str | list[str] | None:
    """The values without a column as JSON, the text that the parser would write."""
    units = {s.key: s.unit for s in template.segments if s.key}
    if not template.rest:
        return None
    if all(text is not None for _, text in template.rest):
        return as_json(dict(template.rest))
    data = lines.text
    spans = {key: values[f"rest:{key}"].tolist() for key, text in template.rest if text is None}
    out = []
    for row in range(rows):
        pairs = {}
        for key, text in template.rest:
            pairs[key] = text if text is not None else data[spans[key][0][row] : spans[key][1][row]] + units[key]
        out.append(as_json(pairs))
    return out
