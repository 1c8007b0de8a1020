"""A trace file becomes a Trace, and a Reading says what was found on the way: nothing is dropped or guessed silently.

Strict (the default): the first row that cannot be used stops with file, line and column. Lenient: such rows are left out,
counted and named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from apd_replay.errors import InputError
from apd_replay.trace.assembly import Assembly, assemble
from apd_replay.trace.formats import formats
from apd_replay.trace.model import Trace
from apd_replay.trace.rows import Format, Record, Row, RowError, named
from apd_replay.trace.source import Broken, Source, open_source, records

LENIENT = "mend the line, or leave such rows out with --lenient"
LOOKED_AT = 20  # records whose keys together tell the format: the first one alone may lack a field


@dataclass(frozen=True, slots=True)
class Rejection:
    line: int
    column: str | int | None
    problem: str

    def __str__(self) -> str:
        return f"line {self.line}: " + (f"column {self.column}: " if self.column is not None else "") + self.problem


@dataclass(slots=True)
class Reading:
    """What reading a file found. `hash_counts`: rows by how their number of hash_ids fits the prompt (`ceil`: a partial last
    block has an id, `floor`: it has none)."""

    file: str
    format: str
    rows: int = 0
    rejections: list[Rejection] = field(default_factory=list)
    exact_duplicates: list[int] = field(default_factory=list)
    conflicts: list[tuple[int, int]] = field(default_factory=list)
    quoted_numbers: int = 0
    first_quoted_line: int | None = None
    hash_counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("ceil", "floor", "too_many", "too_few"), 0))
    assembly: Assembly | None = None

    @property
    def rejected(self) -> int:
        """Rows of the file that are no turn of the trace: rejected ones, conflicts among them, and dropped duplicates."""
        return len(self.rejections) + len(self.exact_duplicates)

    def notes(self) -> list[str]:
        """What a reader should know, one sentence each; the first names the format and the unit of time."""
        assert self.assembly is not None
        found = self.assembly
        out = [f"read as {self.format}, timestamps in {found.unit}"]
        if self.rejections:
            some = "; ".join(map(str, self.rejections[:5])) + ("; ..." if len(self.rejections) > 5 else "")
            out.append(f"rows rejected: {len(self.rejections)} ({some})")
        if self.exact_duplicates:
            out.append(f"exact duplicates dropped: {len(self.exact_duplicates)} (first: line {self.exact_duplicates[0]})")
        if self.quoted_numbers:
            out.append(f"numbers in quotes: {self.quoted_numbers} (first: line {self.first_quoted_line}); read as numbers")
        return out + found.notes()


def read(file: Path, format_name: str | None = None, lenient: bool = False) -> tuple[Trace, Reading]:
    """The trace in `file`, whatever its format, and what was found. Raises InputError with file, line, column and reason."""
    source = open_source(file)
    format_ = _named(file, format_name) if format_name else detect(source)
    reading = Reading(str(file), format_.name)
    rows = list(_rows(source, format_, reading, lenient))
    if not rows:
        raise InputError(file, "holds no requests" + (f"; {reading.rejections[0]}" if reading.rejections else ""))
    reading.rows = len(rows)
    try:
        trace, reading.assembly = assemble(file.name.split(".")[0], rows, format_)
    except RowError as error:
        raise InputError(file, error.problem, column=error.column) from None
    return trace, reading


def detect(source: Source) -> Format:
    """The format that the first records' fields (or the CSV header) have."""
    keys = set(source.header)
    if source.shape != "csv":
        for k, item in enumerate(records(source)):
            if not isinstance(item, Broken):
                keys |= item[1].keys()
            if k == LOOKED_AT:
                break
    shape = "csv" if source.shape == "csv" else "json"
    for candidate in formats().values():
        if candidate.matches(shape, keys):
            return candidate
    found = ", ".join(map(named, sorted(keys)[:8])) or "no JSON object in the first lines"
    raise InputError(source.file, f"no known trace format; its fields: {found}", line=1,
                     remedy=f"known: {', '.join(formats())} (docs/traces.md has their fields)")


def _named(file: Path, name: str) -> Format:
    if name not in formats():
        raise InputError(file, f"unknown trace format {name!r}", remedy=f"known: {', '.join(formats())}")
    return formats()[name]


def _rows(source: Source, format_: Format, reading: Reading, lenient: bool) -> Iterator[Row]:
    """Rows that can be used, in file order."""
    seen: dict[tuple[str | None, ...], Row] = {}

    def reject(line: int, column: str | int | None, problem: str) -> None:
        if not lenient:
            raise InputError(source.file, problem, line=line, column=column, remedy=LENIENT)
        reading.rejections.append(Rejection(line, column, problem))

    for item in records(source):
        if isinstance(item, Broken):
            reject(item.line, item.column, item.problem)
            continue
        record = Record(*item, textual=source.shape == "csv")
        try:
            found = list(format_.rows(record))
            for row in found:
                _check_blocks(row, reading)
        except RowError as error:
            reject(record.line, error.column, error.problem)
            continue
        if record.quoted:
            reading.quoted_numbers += record.quoted
            reading.first_quoted_line = reading.first_quoted_line or record.line
        for row in found:
            key = _identity(row)
            first = seen.setdefault(key, row) if key else row
            if first is row:
                yield row
            elif first == row:
                reading.exact_duplicates.append(row.line)
            else:
                reading.conflicts.append((first.line, row.line))
                reject(row.line, None, f"the same request as line {first.line} ({' '.join(named(part) for part in key or () if part)}) with other content: neither is known to be right")


def _identity(row: Row) -> tuple[str | None, ...] | None:
    """What names a request in its file: its chat, else its turn of its session; without either, rows are never the same one."""
    if row.chat is not None:
        return ("chat", row.session, row.chat)
    if row.session is not None and row.turn is not None:
        return ("turn", row.session, str(row.turn))
    return None


def _check_blocks(row: Row, reading: Reading) -> None:
    """Count how hash_ids fit the prompt's length; too many or too few name blocks that are not there."""
    if row.hash_ids is None or row.block_tokens is None:
        return
    have, whole, partial = len(row.hash_ids), *divmod(row.input_tokens, row.block_tokens)
    ceil = whole + (partial > 0)
    kind = "ceil" if have == ceil else "floor" if have == whole else "too_many" if have > ceil else "too_few"
    reading.hash_counts[kind] += 1
    if kind in ("too_many", "too_few"):
        raise RowError("hash_ids", f"{have} ids are {kind.replace('_', ' ')} for {row.input_tokens} tokens in blocks of {row.block_tokens}: expected {ceil}"
                       + (f" (or {whole})" if partial else ""))
