"""Rows become sessions of turns: who belongs together, in which order, how long was waited, what is shared."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from apd_replay.trace.model import Session, Trace, Turn, shared_with_previous
from apd_replay.trace.rows import Format, Row, RowError, Stamp

# Stamps as large as these are no seconds of a recording: 1e11 s since 1970 is the year 5138, 1e11 ms is March 1973.
EPOCH_UNITS = ((10**17, 10**9, "nanoseconds since 1970"), (10**14, 10**6, "microseconds since 1970"), (10**11, 1000, "milliseconds since 1970"),
               (10**8, 1, "seconds since 1970"))
UNIT_NAMES = {1: "seconds", 1000: "milliseconds", 10_000_000: "units of 100 ns"}
SUSPICIOUS_GAP_S = 300.0


@dataclass(slots=True)
class Assembly:
    """What was found while rows became sessions. Lengths of lists and counts of turns, never silently mended."""

    unit: str
    unsorted: bool = False
    forks: int = 0
    orphans: int = 0
    turn_numbers_against_time: int = 0
    overlaps: int = 0
    arrival_gaps: int = 0
    waits_unknown: int = 0
    suspicious_unit: float | None = None

    def notes(self) -> list[str]:
        told = (
            (self.suspicious_unit, f"whole-number timestamps and a median gap of {self.suspicious_unit} s: if they are milliseconds, "
                                   "name the format session-ms"),
            (self.unsorted, "rows are not in order of time: ordered"),
            (self.forks, f"{self.forks} forks (a request with several follow-ups): replayed as one session, in order of time"),
            (self.orphans, f"{self.orphans} requests name a parent that is not in the file: each begins a session"),
            (self.turn_numbers_against_time, f"{self.turn_numbers_against_time} turns whose number contradicts their time: time decides"),
            (self.overlaps, f"{self.overlaps} turns were sent before the previous answer had ended: gap 0"),
            (self.arrival_gaps, f"{self.arrival_gaps} gaps are differences of send times: service time is in them and counts twice in a replay"),
            (self.waits_unknown, f"{self.waits_unknown} of these: a wait is given, but not the end of the answer that it began at"),
        )
        return [text for holds, text in told if holds]


def assemble(name: str, rows: list[Row], format_: Format) -> tuple[Trace, Assembly]:
    """The trace of `rows`. Times are rebased on the smallest stamp; sessions are ordered by first send, then by id."""
    origin = min(row.time for row in rows)
    per_second, unit = _unit(rows, format_)
    found = Assembly(unit)
    with_ids = any(row.hash_ids for row in rows)
    sessions = [_session(id_, members, origin, per_second, format_, with_ids, found) for id_, members in _grouped(rows, found).items()]
    sessions.sort(key=lambda s: (s.turns[0].arrival_s, s.id))
    if format_.per_second is None and per_second == 1:
        found.suspicious_unit = _suspicious(rows, sessions)
    return Trace(name, digest(sessions), tuple(sessions)), found


def digest(sessions: Iterable[Session]) -> str:
    """sha256 of what the turns are, whatever file they came from."""
    sha = hashlib.sha256()
    for session in sessions:
        for t in session.turns:
            ids = array("q", t.hash_ids) if t.hash_ids is not None else None
            sha.update(repr((t.session, t.turn, t.arrival_s, t.gap_s, t.gap_kind, t.input_tokens, t.output_tokens, t.shared_tokens,
                             t.block_size, None if ids is None else len(ids))).encode())
            if ids is not None:
                sha.update(ids.tobytes())
    return sha.hexdigest()


def _unit(rows: list[Row], format_: Format) -> tuple[int, str]:
    if format_.per_second is not None:
        return format_.per_second, UNIT_NAMES[format_.per_second]
    largest = max(abs(row.time) for row in rows)
    for least, per_second, unit in EPOCH_UNITS:
        if largest >= least:
            return per_second, unit
    return 1, "seconds"


def _suspicious(rows: list[Row], sessions: list[Session]) -> float | None:
    gaps = [t.gap_s for s in sessions for t in s.turns if t.gap_kind == "arrival" and t.gap_s is not None]
    typical = median(gaps) if gaps else 0.0
    return typical if typical >= SUSPICIOUS_GAP_S and all(row.time == int(row.time) for row in rows) else None


def _grouped(rows: list[Row], found: Assembly) -> dict[str, list[Row]]:
    """Rows by session: the id the file gives, else the root of the chain of parents, else each row alone, numbered by time."""
    by_chat: dict[str | None, Row] = {row.chat: row for row in rows if row.session is None and row.chat is not None}
    alone = [row for row in rows if row.session is None and row.chat is None]
    found.unsorted = _unsorted(alone)
    alone.sort(key=lambda row: row.time)
    numbers = {id(row): f"request-{k:0{len(str(len(alone)))}d}" for k, row in enumerate(alone)}
    out: dict[str, list[Row]] = {}
    for row in rows:
        if row.session is not None:
            key = row.session
        elif row.chat is not None:
            key = _root(row, by_chat)
            found.orphans += row.parent is not None and row.parent not in by_chat
        else:
            key = numbers[id(row)]
        out.setdefault(key, []).append(row)
    return out


def _root(row: Row, by_chat: dict[str | None, Row]) -> str:
    seen = set()
    while row.parent in by_chat:
        if row.chat in seen:
            raise RowError("parent_chat_id", f"the parents of the request in line {row.line} form a loop")
        seen.add(row.chat)
        row = by_chat[row.parent]
    assert row.chat is not None
    return row.chat


def _session(id_: str, rows: list[Row], origin: Stamp, per_second: int, format_: Format, with_ids: bool, found: Assembly) -> Session:
    found.unsorted |= _unsorted(rows)
    rows.sort(key=lambda row: (row.time, -1 if row.turn is None else row.turn, row.line))
    found.turn_numbers_against_time += sum(a.turn is not None and b.turn is not None and b.turn < a.turn
                                           for a, b in pairwise(rows))
    by_chat: dict[str | None, Row] = {row.chat: row for row in rows if row.chat is not None}
    parents = [row.parent for row in rows if row.parent in by_chat]
    found.forks += len(parents) - len(set(parents))
    turns: list[Turn] = []
    for k, row in enumerate(rows):
        arrival = round((row.time - origin) / per_second, 9)
        gap, kind = None, None
        if k:
            gap, kind = _gap(row, by_chat.get(row.parent, rows[k - 1]), per_second, found)
            if format_.session_stamps:
                arrival = round(turns[-1].arrival_s + gap, 9)
        turn = Turn(id_, k, arrival, gap, kind, row.input_tokens, row.output_tokens, None, row.hash_ids, row.block_tokens)
        turns.append(turn if not k else replace(turn, shared_tokens=_shared(turns[-1], turn, row, with_ids)))
    return Session(id_, tuple(turns))


def _gap(row: Row, before: Row, per_second: int, found: Assembly) -> tuple[float, str]:
    """Seconds from the previous answer's end to this send, and how they are known. `before` is the parent, where the file names one."""
    if before.wait_after_s is not None:
        return before.wait_after_s, "think"
    between = (row.time - before.time) / per_second
    if before.served_s is None:
        # A file may give this wait without the answer it begins at; then it counts from some earlier one.
        found.waits_unknown += row.think_s is not None
        found.arrival_gaps += 1
        found.overlaps += between < 0
        return max(0.0, round(between, 9)), "arrival"
    gap = row.think_s if row.think_s is not None else between - before.served_s
    found.overlaps += gap < 0
    return max(0.0, round(gap, 9)), "think"


def _shared(before: Turn, turn: Turn, row: Row, with_ids: bool) -> int | None:
    """`with_ids`: the file names blocks, so that a turn without them is unknown and not taken as append-only."""
    if row.prefix_tokens is not None:
        return min(row.prefix_tokens, before.input_tokens + before.output_tokens)
    if with_ids and not (before.hash_ids and turn.hash_ids):
        return None
    return shared_with_previous(before, turn)


def _unsorted(rows: list[Row]) -> bool:
    return any(b.time < a.time for a, b in pairwise(rows))
