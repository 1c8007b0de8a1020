"""The quick way through large logs: lines of known layouts are read in C, all others line by line.

It never decides what a line means. The scanner (_scan.c) reads on as long as lines have a layout that was learnt from this log (learn.py);
the first other line goes to the parser, and its layout, if it has one, is learnt. So all lines are read in their order, and the parser
knows at each of its own what the lines before said. tests/logs/test_log_fast.py holds both ways against each other.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from apd_replay.logs._scan import INTERFACE, Scanner
from apd_replay.logs.learn import LONGEST, STAMPED, Layout, NotYet, Skeleton, is_number, learn, skeleton
from apd_replay.logs.parser import LogParser
from apd_replay.logs.prefix import epoch, rank
from apd_replay.logs.reading import Block
from apd_replay.logs.spool import RANKS, Spool

if INTERFACE != 1:
    raise ImportError("the compiled part is of another version")

ROWS = 1 << 14  # of one layout, before they go to the spool
_TEXT_BYTES = 256  # memory for one text of a row; where rows have longer ones, fewer of them fit
_TRIES, _TRIES_AFTER, _TRIES_OF_A_BLOCK = 3_000, 200, 4  # lines looked at in vain: at first, since the last layout, and in a block after that
_MOST_SEEN, _MOST_ASKED = 5_000, 1_000  # different lines remembered, and asked about
_MOST_TABLES = 96  # layouts whose rows wait in memory
_KINDS, _STORES = {"digits": 0, "decimal": 1, "word": 2, "hex": 3, "end": 4}, {None: 0, pa.int32(): 1, pa.int64(): 2, pa.float64(): 3}
_PREFIX_COLUMNS = {"line": pa.int32(), "offset": pa.int64(), "ts": pa.float64(), "tags": pa.int32()}


@dataclass
class _Known:
    """A layout in the scanner. `places`: where each column of numbers, or each text's (offsets, heap), begins in `memory`. `told`: the log's
    role and launch from which of the rows in memory on."""

    layout: Layout
    spool: Spool | None
    places: dict[str, Any]
    memory: Any
    told: dict[int, tuple[str | None, int]]


class FastLane:
    """Reads blocks of one file into the spools, through `parser` wherever a line has no known layout."""

    def __init__(self, parser: LogParser, samples: Spool, events: Spool, stats: Spool) -> None:
        self.parser = parser
        self._spools = {"samples": samples, "events": events, "stats": stats}
        self._scanner = Scanner()
        self._known: list[_Known] = []
        self._date = ""
        self._tags: list[str] = []
        self._once: set[Skeleton] = set()
        self._asked: dict[Skeleton, tuple[bool, bool] | None] = {}  # with what the parser knew of the clocks, where that was too little
        self._tries = _TRIES
        self._told = parser.role, parser.launch

    def block(self, block: Block) -> None:
        data, parser, at, line = block.data, self.parser, 0, block.first_line
        self._tries = max(self._tries, _TRIES_OF_A_BLOCK)
        while True:
            at, line, full, stamps, first, last = self._scanner.scan(data, at, line, block.offset, parser.role is not None, parser.unexplained is None)
            if stamps:
                parser.saw(first)
                parser.saw(last)
            if full >= 0:
                self._keep(full)
                continue
            if at == len(data):
                return
            end = data.find(b"\n", at)
            raw = data[at : end if end >= 0 else len(data)]
            parser.line(raw, line, block.offset + at)
            if (parser.role, parser.launch) != self._told:
                self._tell()
            self._learn(raw)
            if end < 0:
                return
            at, line = end + 1, line + 1

    def finish(self) -> None:
        """The file is read: what is in memory goes to the spools, and the parser's books are put right."""
        parser = self.parser
        for index, known in enumerate(self._known):
            lines, rows = self._scanner.counts(index)
            if rows:
                self._keep(index)
            if lines:
                parser.lines[known.layout.cls] += lines
                parser.counts.update({name: count * lines for name, count in known.layout.counted})
                if known.layout.shown is not None:
                    parser.roles.add(known.layout.shown)
                if known.layout.shape is not None:
                    parser.shapes.found[known.layout.shape].count += lines

    # learning -------------------------------------------------------------------------------------------------------

    def _learn(self, raw: bytes) -> None:
        if self._tries <= 0 or len(raw) > 2 * LONGEST:
            return
        self._tries -= 1
        line = skeleton(raw.decode("latin-1"))
        if line is None:
            return
        if line.stamp is not None:
            self._add_prefix(line)
        if line not in self._once:  # most lines of a start-up never come again
            if len(self._once) >= _MOST_SEEN:
                self._once.clear()
            self._once.add(line)
            return
        evidence = self.parser.has_served_enough, self.parser.has_entry_gaps_enough
        if self._asked.get(line, ()) in (None, evidence) or len(self._asked) == _MOST_ASKED:
            return
        try:
            layout = learn(line, self.parser)
        except NotYet:
            self._asked[line] = evidence
            return
        self._asked[line] = None
        if layout is not None:
            self._add(layout)
            self._tries = max(self._tries, _TRIES_AFTER)

    def _add_prefix(self, line: Skeleton) -> None:
        date = line.head.removeprefix("[")[:10]
        midnight = epoch(date, "00:00:00", None)
        if midnight is not None and date != self._date:
            self._date = date
            self._scanner.add_date(date.encode(), midnight)
        if line.prefix == STAMPED and line.tags not in self._tags and self._scanner.add_tags(line.tags.encode()) > len(self._tags):
            self._tags.append(line.tags)

    def _add(self, layout: Layout) -> None:
        """Tell the scanner, in its terms."""
        spool = self._spools.get(layout.table or "")
        if spool is not None and sum(known.spool is not None for known in self._known) >= _MOST_TABLES:
            return
        kinds = {f.name: f.type for f in spool.schema} if spool is not None else {}
        places: dict[str, Any] = {}
        size = 0

        def room(count: int) -> int:
            nonlocal size
            begin, size = size, size + (count + 63 & ~63)
            return begin

        if spool is not None:
            places |= {name: room(ROWS * kind.bit_width // 8) for name, kind in _PREFIX_COLUMNS.items()}
        numbers = {what[0]: (name, kinds[name]) for name, what in layout.columns if is_number(what)}
        places |= {name: room(ROWS * kind.bit_width // 8) for name, kind in numbers.values()}
        words = {name: pieces for name, pieces in layout.columns if not is_number(pieces) and not _is_fixed(pieces)}
        places |= {name: (room((ROWS + 1) * 4), room(ROWS * _TEXT_BYTES)) for name in words}

        text, steps, texts, pieces_ = b"", array("q"), array("q"), array("q")
        for at, fixed in enumerate(layout.texts):
            hole = layout.holes[at] if at < len(layout.holes) else None
            name, kind = numbers.get(at, (None, None))
            steps.extend((len(text), len(fixed), _KINDS[hole.kind if hole else "end"], hole.least if hole else 1, hole.most if hole else 1, hole.zeros if hole else 1, _STORES[kind], places[name] if name else 0))
            text += fixed.encode()
        for name, pieces in words.items():
            texts.extend((*places[name], ROWS * _TEXT_BYTES, len(pieces_) // 3, len(pieces)))
            for piece in pieces:
                pieces_.extend((piece, 0, 0) if isinstance(piece, int) else (-1, len(text), len(piece.encode())))
                text += b"" if isinstance(piece, int) else piece.encode()
        head = array("q", [layout.prefix, layout.shown is not None, ROWS if spool else 0, *(places.get(name, -1) for name in _PREFIX_COLUMNS)])
        known = _Known(layout, spool, places, self._memory(size, places) if spool else None, {0: self._told})
        if self._scanner.add_layout(text, head.tobytes(), steps.tobytes(), texts.tobytes(), pieces_.tobytes(), known.memory) >= 0:
            self._known.append(known)

    @staticmethod
    def _memory(size: int, places: dict[str, Any]) -> Any:
        memory = pa.allocate_buffer(size, pa.system_memory_pool())  # the other pools touch the memory
        view = memoryview(memory).cast("B")
        for place in places.values():
            if isinstance(place, tuple):
                view[place[0] : place[0] + 4] = bytes(4)
        return memory

    # keeping --------------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """The log's role or launch is another one from here on."""
        self._told = self.parser.role, self.parser.launch
        for index, known in enumerate(self._known):
            if known.spool is not None:
                known.told[self._scanner.counts(index)[1]] = self._told

    def _keep(self, index: int) -> None:
        """A layout's rows become a batch of their spool."""
        known = self._known[index]
        memory, known.memory = known.memory, self._memory(known.memory.size, known.places)
        rows = self._scanner.take(index, known.memory)
        spool, layout = known.spool, known.layout
        assert spool is not None
        fixed: dict[str, Any] = {name: pieces[0] for name, pieces in layout.columns if not is_number(pieces) and _is_fixed(pieces)}
        columns = self._ranks(memory, known.places["tags"], rows)
        for name, runs in self._told_of(known).items():
            if len(set(runs.values())) == 1:
                fixed[name] = next(iter(runs.values()))
            else:
                columns[name] = _by_run(runs, rows, spool.schema.field(name).type)
        for name, place in known.places.items():
            if name == "tags" or (name == "ts" and layout.prefix != STAMPED):
                continue
            kind = spool.schema.field(name).type
            if isinstance(place, tuple):
                texts = pa.Array.from_buffers(pa.string(), rows, [None, memory.slice(place[0], 4 * rows + 4), memory.slice(place[1], ROWS * _TEXT_BYTES)])
                columns[name] = texts.dictionary_encode() if pa.types.is_dictionary(kind) else texts
            else:
                columns[name] = pa.Array.from_buffers(kind, rows, [None, memory.slice(place, rows * kind.bit_width // 8)])
        spool.add_columns(rows, columns, fixed)

    def _told_of(self, known: _Known) -> dict[str, dict[int, Any]]:
        """Values of file, role and launch, by the row from which on they hold."""
        told, known.told = known.told, {0: self._told}
        shown = known.layout.shown
        return {"file": {0: self.parser.file}, "role": {at: shown or role for at, (role, _) in told.items()}, "launch": {at: launch for at, (_, launch) in told.items()}}

    def _ranks(self, memory: Any, place: int, rows: int) -> dict[str, Any]:
        if not any(self._tags):
            return {}
        tags = pa.Array.from_buffers(pa.int32(), rows, [None, memory.slice(place, rows * 4)])
        return {name: pc.take(pa.array([rank(tags, tag) for tags in self._tags], pa.int32()), tags) for name, tag in RANKS.items()}


def _by_run(runs: dict[int, Any], rows: int, kind: pa.DataType) -> pa.Array:
    """A column of values that hold from one row on to the next; `runs` is in order."""
    ends = [*list(runs)[1:], rows]
    values = [value for (begin, value), end in zip(runs.items(), ends, strict=True) for _ in range(begin, end)]
    return pa.array(values, pa.string()).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(values, kind)


def _is_fixed(pieces: tuple[Any, ...]) -> bool:
    return len(pieces) == 1 and isinstance(pieces[0], str)
