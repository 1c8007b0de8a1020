"""One layout in the scanner: what _scan.c must know of it, the memory that its rows are written to, and the columns that come out of that."""

from __future__ import annotations

from array import array
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from apd_replay.logs.learn import Layout, is_number
from apd_replay.logs.prefix import rank
from apd_replay.logs.spool import RANKS, Spool

ROWS = 1 << 14  # in memory, before they go to the spool
TEXT_BYTES = 256  # memory for one text of a row; where rows have longer ones, fewer of them fit
_KINDS = {"digits": 0, "decimal": 1, "word": 2, "hex": 3}
_END = (4, 1, 1, 1)
_STORES = {pa.int32(): 1, pa.int64(): 2, pa.float64(): 3}
_OF_THE_LINE = {"line": pa.int32(), "offset": pa.int64(), "ts": pa.float64(), "tags": pa.int32()}

Told = tuple[str | None, int]  # the log's role and launch


class Scanned:
    """Rows of `layout`, all of stamped lines, on their way to `spool`; without a spool its lines are only counted."""

    def __init__(self, layout: Layout, spool: Spool | None, told: Told) -> None:
        self.layout, self.spool = layout, spool
        self._told = {0: told}  # by the row from which on it holds
        self._numbers: dict[str, tuple[int, pa.DataType]] = {}  # column -> hole, type
        self._texts: dict[str, tuple[Any, ...]] = {}  # column -> pieces
        self._fixed: dict[str, Any] = {}
        for name, what in layout.columns:
            if is_number(what):
                self._numbers[name] = what[0], self._kind(name)
            elif len(what) == 1 and isinstance(what[0], str):
                self._fixed[name] = what[0]
            else:
                self._texts[name] = what
        self._size = 0
        self._places: dict[str, int] = {}  # of numbers
        self._text_places: dict[str, tuple[int, int]] = {}  # of offsets and of what they point into
        if spool is not None:
            widths = _OF_THE_LINE | {name: kind for name, (_, kind) in self._numbers.items()}
            self._places = {name: self._room(ROWS * kind.bit_width // 8) for name, kind in widths.items()}
            self._text_places = {name: (self._room(4 * ROWS + 4), self._room(ROWS * TEXT_BYTES)) for name in self._texts}
        self.memory = self._fresh()

    def _kind(self, name: str) -> pa.DataType:
        assert self.spool is not None
        return self.spool.schema.field(name).type

    def _room(self, count: int) -> int:
        begin, self._size = self._size, self._size + (count + 63 & ~63)
        return begin

    def _fresh(self) -> Any:
        if self.spool is None:
            return None
        memory = pa.allocate_buffer(self._size, pa.system_memory_pool())  # the other pools touch what nobody may need
        view = memoryview(memory).cast("B")
        for offsets, _ in self._text_places.values():
            view[offsets : offsets + 4] = bytes(4)
        return memory

    def records(self) -> tuple[bytes, ...]:
        """The layout as add_layout of _scan.c takes it."""
        layout, text = self.layout, bytearray()
        steps, texts, pieces = array("q"), array("q"), array("q")
        stored = {hole: (_STORES[kind], self._places[name]) for name, (hole, kind) in self._numbers.items()}
        for at, fixed in enumerate(layout.texts):
            hole = layout.holes[at] if at < len(layout.holes) else None
            ends_with = (_KINDS[hole.kind], hole.least, hole.most, int(hole.zeros)) if hole is not None else _END
            steps.extend((len(text), len(fixed), *ends_with, *stored.get(at, (0, 0))))
            text += fixed.encode()
        for name, parts in self._texts.items():
            texts.extend((*self._text_places[name], ROWS * TEXT_BYTES, len(pieces) // 3, len(parts)))
            for part in parts:
                pieces.extend((part, 0, 0) if isinstance(part, int) else (-1, len(text), len(part)))
                text += b"" if isinstance(part, int) else part.encode()
        head = array("q", [layout.prefix, layout.shown is not None, ROWS if self.spool is not None else 0, *(self._places.get(name, -1) for name in _OF_THE_LINE)])
        return bytes(text), head.tobytes(), steps.tobytes(), texts.tobytes(), pieces.tobytes()

    def tell(self, row: int, told: Told) -> None:
        """From this row on the log has another role or launch."""
        self._told[row] = told

    def take(self, scanner: Any, index: int, file: str, tags: list[str]) -> None:
        """The rows become a batch of the spool."""
        assert self.spool is not None
        memory, self.memory = self.memory, self._fresh()
        rows = scanner.take(index, self.memory)
        columns, fixed = self._ranks(memory, rows, tags), {**self._fixed, "file": file}
        for name, runs in self._runs().items():
            if len(set(runs.values())) == 1:
                fixed[name] = next(iter(runs.values()))
            else:
                columns[name] = _by_run(runs, rows, self._kind(name))
        for name, place in self._places.items():
            if name != "tags":
                columns[name] = _numbers(memory, place, self._kind(name), rows)
        for name, (offsets, heap) in self._text_places.items():
            column = pa.Array.from_buffers(pa.string(), rows, [None, memory.slice(offsets, 4 * rows + 4), memory.slice(heap, ROWS * TEXT_BYTES)])
            columns[name] = column.dictionary_encode() if pa.types.is_dictionary(self._kind(name)) else column
        self.spool.add_columns(rows, columns, fixed)

    def _runs(self) -> dict[str, dict[int, Any]]:
        """Role and launch, by the row from which on they hold; the last ones hold for what comes next."""
        told = self._told
        self._told = {0: list(told.values())[-1]}
        return {"role": {at: self.layout.shown or role for at, (role, _) in told.items()}, "launch": {at: launch for at, (_, launch) in told.items()}}

    def _ranks(self, memory: Any, rows: int, tags: list[str]) -> dict[str, pa.Array]:
        if not any(tags):
            return {}
        numbers = _numbers(memory, self._places["tags"], pa.int32(), rows)
        return {name: pc.take(pa.array([rank(known, tag) for known in tags], pa.int32()), numbers) for name, tag in RANKS.items()}


def _numbers(memory: Any, place: int, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, memory.slice(place, rows * kind.bit_width // 8)])


def _by_run(runs: dict[int, Any], rows: int, kind: pa.DataType) -> pa.Array:
    """A column of values that hold from one row on to the next; `runs` is in order."""
    ends = [*list(runs)[1:], rows]
    values = [value for (begin, value), end in zip(runs.items(), ends, strict=True) for _ in range(begin, end)]
    return pa.array(values, pa.string()).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(values, kind)
