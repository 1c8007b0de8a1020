"""The quick way through large logs: lines of known layouts are read in C, all others line by line.

It never decides what a line means. The scanner (_scan.c) reads on as long as lines have a layout that was learnt from this log (learn.py);
the first other line goes to the parser, and its layout, if it has one, is learnt. So all lines are read in their order, and the parser
knows at each of its own what the lines before said. tests/logs/test_log_fast.py holds both ways against each other.
"""

from __future__ import annotations

from apd_replay.logs._scan import INTERFACE, Scanner
from apd_replay.logs.learn import LONGEST, STAMPED, Layout, NotYet, Skeleton, learn, skeleton
from apd_replay.logs.parser import LogParser
from apd_replay.logs.prefix import epoch
from apd_replay.logs.reading import Block
from apd_replay.logs.scanned import Scanned
from apd_replay.logs.spool import Spool

if INTERFACE != 2:
    raise ImportError("the compiled part is of another version")

_TRIES, _TRIES_AFTER, _TRIES_OF_A_BLOCK = 3_000, 200, 4  # lines looked at in vain: at first, since the last layout, and in a block after that
_MOST_SEEN, _MOST_ASKED = 5_000, 1_000  # different lines remembered, and asked about
_MOST_TABLES = 96  # layouts whose rows wait in memory


class FastLane:
    """Reads blocks of one file into the spools, through `parser` wherever a line has no known layout."""

    def __init__(self, parser: LogParser, samples: Spool, events: Spool, stats: Spool) -> None:
        self.parser = parser
        self._spools = {"samples": samples, "events": events, "stats": stats}
        self._scanner = Scanner()
        self._known: list[Scanned] = []
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
            at, end, line, full, stamps, first, last = self._scanner.scan(data, at, line, block.offset, parser.role is not None, parser.unexplained is None)
            if stamps:
                parser.saw(first)
                parser.saw(last)
            if full >= 0:
                self._known[full].take(self._scanner, full, parser.file, self._tags)
                continue
            if at >= len(data):
                return
            raw = bytes(data[at:end])
            parser.line(raw, line, block.offset + at)
            if (parser.role, parser.launch) != self._told:
                self._tell()
            self._learn(raw)
            at, line = end + 1, line + 1

    def finish(self) -> None:
        """The file is read: what is in memory goes to the spools, and the parser's books are put right."""
        parser = self.parser
        for index, known in enumerate(self._known):
            lines, rows = self._scanner.counts(index)
            if rows:
                known.take(self._scanner, index, parser.file, self._tags)
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
        spool = self._spools.get(layout.table or "")
        if spool is not None and sum(known.spool is not None for known in self._known) >= _MOST_TABLES:
            return
        known = Scanned(layout, spool, self._told)
        if self._scanner.add_layout(*known.records(), known.memory) >= 0:
            self._known.append(known)

    def _tell(self) -> None:
        """The log's role or launch is another one from here on."""
        self._told = self.parser.role, self.parser.launch
        for index, known in enumerate(self._known):
            if known.spool is not None:
                known.tell(self._scanner.counts(index)[1], self._told)
