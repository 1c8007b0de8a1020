"""One log, line by line, becomes rows. This is the definition of what a line means; fast.py only does the same sooner.

A LogParser carries what later lines need from earlier ones (role, server start, an open traceback, the year for glog stamps) and
nothing of what comes after: the rows of any prefix of a log are a prefix of its rows, but for an event that is still open.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from apd_replay.logs import batch, events, failures, known, server_args, time_stats
from apd_replay.logs.prefix import Piece, epoch, pieces, plain_piece, strip_terminal, unwrap
from apd_replay.logs.request_log import read as read_request_log
from apd_replay.logs.rest import as_json
from apd_replay.logs.shapes import Shapes
from apd_replay.logs.tracebacks import Traceback, is_exception_line, is_start

DETAIL_LENGTH = 500
_BEST_FIRST = ("row", "cut", "unknown", "known")
EVIDENCE_ROWS = 1_000  # clock evidence kept of one log

Row = dict[str, Any]


class LogParser:
    """State of one log (a file, or a file with its rotated predecessors in order). Rows are taken with `take`."""

    def __init__(self) -> None:
        self.file = ""
        self.role: str | None = None
        self.roles: set[str] = set()
        self.launch = 0
        self.arguments: dict[str, str] | None = None
        self.year: int | None = None
        self.engine_address: str | None = None
        self.samples: list[Row] = []
        self.events: list[Row] = []
        self.stats: list[Row] = []
        self.open: Traceback | None = None
        self._message_line = -1  # the last line of an exception's message
        self.unexplained: Row | None = None  # a failure whose reason stands on the next line
        self._lead = ""  # text in front of the line's stamp that no rule knows
        self.start_file("")

    def start_file(self, file: str) -> None:
        """Accounts are per file, state is per log."""
        self.file = file
        self.lines: Counter[str] = Counter()  # physical lines: row, known, cut, unknown, over_long
        self.counts: Counter[str] = Counter()  # pieces by kind
        self.bad_utf8 = 0
        self.launches = 0
        self.shapes = Shapes()
        self.tags: set[str] = set()
        self.stamps_seen = 0
        self.first_stamp: float | None = None
        self.last_stamp: float | None = None
        self.served: list[float] = []  # stamps of served requests, for the clocks
        self.entry_gaps: list[float] = []  # stamp - entry time (UTC) of ReqTimeStats lines

    def line(self, raw: bytes, number: int, offset: int) -> list[tuple[str, str, Row | None]]:
        """Read one physical line (no newline at its end). What was understood, piece by piece: (class, kind, row)."""
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            text = raw.decode(errors="replace")
            self.bad_utf8 += 1
        if "\x1b" in text:
            text = strip_terminal(text)
        self._lead = ""
        if "\r" not in text and (plain := plain_piece(text)) is not None:  # nearly always
            understood = self._piece(plain, number, offset)
            assert understood is not None
            self.counts[understood[1]] += 1
            self.lines[understood[0]] += 1
            return [understood]
        out = []
        for part in _carriage_returns(text):
            for piece in pieces(unwrap(part)):
                understood = self._piece(piece, number, offset)
                if understood is not None:
                    out.append(understood)
                    self.counts[understood[1]] += 1
        classes = {found[0] for found in out}
        self.lines[next((c for c in _BEST_FIRST if c in classes), "known")] += 1
        return out

    def over_long(self, head: bytes, number: int) -> None:
        self.lines["over_long"] += 1
        self.shapes.add(strip_terminal(head[:1000].decode(errors="replace")), number)

    def take(self, *, last: bool = False) -> tuple[list[Row], list[Row], list[Row]]:
        """Samples, events and request stats since the last call; an event that is still open waits, unless this is the `last` call."""
        if last:
            self.open, self.unexplained = None, None
        open_rows = [row for row in (self.open and self.open.row, self.unexplained) if row is not None]
        waiting = [row for row in self.events if any(row is o for o in open_rows)]
        done = self.samples, [row for row in self.events if not any(row is w for w in waiting)], self.stats
        self.samples, self.events, self.stats = [], waiting, []
        return done

    @property
    def waiting_rows(self) -> int:
        return len(self.samples) + len(self.events) + len(self.stats)

    # one piece ------------------------------------------------------------------------------------------------------

    def _piece(self, piece: Piece, number: int, offset: int) -> tuple[str, str, Row | None] | None:
        message = piece.message
        if piece.lead == "\0":  # text in front of a stamp: a line of its own if a rule knows it
            return self._bare(piece, number, offset, orphan=True)
        if piece.stamp is not None:
            self.saw(piece.stamp)
        if piece.tags:
            self.tags.add(piece.tags)
        head = batch.HEAD.match(message)
        if head is not None:
            return self._batch(piece, head, number, offset)
        if piece.stamped:
            return self._message(piece, number, offset)
        return self._bare(piece, number, offset)

    @property
    def remembers(self) -> bool:
        """Whether the lines so far left more behind than times, a role and counts."""
        return bool(self.open or self.unexplained or self.launch or self.arguments or self.engine_address or self.bad_utf8 or self._message_line >= 0)

    @property
    def has_served_enough(self) -> bool:
        return len(self.served) >= EVIDENCE_ROWS

    @property
    def has_entry_gaps_enough(self) -> bool:
        return len(self.entry_gaps) >= EVIDENCE_ROWS

    def saw(self, stamp: float) -> None:
        self.stamps_seen += 1
        if self.first_stamp is None:
            self.first_stamp = stamp
        self.last_stamp = stamp

    def _batch(self, piece: Piece, head: Any, number: int, offset: int) -> tuple[str, str, Row | None]:
        row, shown = batch.read(piece.message, head, self.role)
        if row is None:
            return "cut", head[1].lower() + " (cut)", None
        self.tell_role(shown)
        return "row", row["kind"], self._keep(self.samples, row, piece, number, offset, shown)

    def _message(self, piece: Piece, number: int, offset: int) -> tuple[str, str, Row | None]:
        """A message behind a stamp or tags."""
        message = piece.message.rstrip()
        if not message:
            return "known", "blank", None
        access = known.ACCESS.match(message)
        if access is not None:
            return self._access(access, piece.stamp)
        if (found := self._event(message, piece, number, offset)) is not None:
            return found
        why = known.find(message)
        if why is None and piece.stamp is None and known.PROGRESS.search(message):
            why = "progress bar"
        if why is not None:
            return "known", why, None
        if batch.is_cut_head(message):
            return "cut", message[: message.index(" ")].lower() + " (cut)", None
        self.shapes.add(message, number)
        return "unknown", "unknown", None

    def _event(self, message: str, piece: Piece, number: int, offset: int) -> tuple[str, str, Row | None] | None:
        failure = failures.HEAD.match(message)
        if failure is not None:
            return self._failure(message, failure, piece, number, offset)
        if message.startswith(time_stats.HEAD):
            return self._time_stats(message, piece, number, offset)
        if message.startswith(server_args.HEAD):
            return self._launch(message)
        if is_start(message):
            return self._exception(message, piece, number, offset)
        if message.startswith(("{", "Finish: ")):
            row = read_request_log(message)
            if row is not None:
                return ("row", "request log", self._keep(self.stats, row, piece, number, offset)) if row else ("known", "request log", None)
        rule = events.find(message)
        if rule is None:
            return None
        match = rule.pattern.fullmatch(message) if rule.pattern else None
        if rule.pattern is not None and match is None:
            return "cut", rule.kind + " (cut)", None
        row = {"kind": rule.kind, "detail": message[:DETAIL_LENGTH]}
        if match is not None:
            row.update(_fields(match.groupdict()))
        self.tell_role(rule.role)
        return "row", rule.kind, self._keep(self.events, row, piece, number, offset, rule.role)

    def _failure(self, message: str, head: Any, piece: Piece, number: int, offset: int) -> tuple[str, str, Row | None]:
        row, complete = failures.read(message, head)
        side = row.pop("side")
        self.tell_role(side)
        rest = row.pop("rest")
        name = head[1] + " failed"
        if rest.get("no_kv_transfer_error") or not complete:
            name += " (no reason on the line)"
        kept = self._keep(self.events, row, piece, number, offset, side)
        if not complete:
            rest["wrapped"] = True
            self.unexplained = kept
        kept["rest"] = as_json(rest)
        return "row", name, kept

    def _time_stats(self, message: str, piece: Piece, number: int, offset: int) -> tuple[str, str, Row | None]:
        row = time_stats.read(message)
        if row is None:
            return "cut", "time stats (cut)", None
        side = row.get("side") if row.get("side") in ("prefill", "decode", "unified") else None
        self.tell_role(side)
        if piece.stamp is not None and "entry_ts" in row and len(self.entry_gaps) < EVIDENCE_ROWS:
            self.entry_gaps.append(piece.stamp - row["entry_ts"])
        return "row", "time stats", self._keep(self.stats, row, piece, number, offset, side)

    def _launch(self, message: str) -> tuple[str, str, Row | None]:
        arguments = server_args.read(message)
        self.launch += 1
        self.launches += 1
        self.role = None
        if arguments is None:
            return "cut", "server_args (cut)", None
        self.arguments = arguments
        self.tell_role(server_args.role(arguments))
        return "known", "server_args", None

    def _exception(self, message: str, piece: Piece, number: int, offset: int) -> tuple[str, str, Row | None]:
        whole = message.endswith("Traceback (most recent call last):")
        if whole:
            self.counts["traceback"] += 1
        if self.open is not None and self.open.continues(piece, message):
            return "row", "exception", self.open.row
        row: Row = {"kind": "exception", "detail": message[:DETAIL_LENGTH]}
        kept = self._keep(self.events, row, piece, number, offset)
        self.open = Traceback(kept, piece.tags)
        return "row", "exception", kept

    def _access(self, access: Any, stamp: float | None) -> tuple[str, str, Row | None]:
        if access["method"] == "POST" and stamp is not None and len(self.served) < EVIDENCE_ROWS:
            self.served.append(stamp)
        if access["status"][0] == "5":
            self.counts["access 5xx"] += 1
        return "known", "access", None

    # lines without a stamp ------------------------------------------------------------------------------------------

    def _bare(self, piece: Piece, number: int, offset: int, *, orphan: bool = False) -> tuple[str, str, Row | None] | None:
        message = piece.message
        text = message.strip()
        if not text:
            return "known", "blank", None
        if self.unexplained is not None and not orphan:
            return self._reason(text)
        if message[0].isspace():
            self.tell_role(_role_of_frame(text))
            return "known", "continuation", None
        if (router := known.ROUTER.match(message)) is not None:
            return self._router(router)
        if (glog := known.GLOG.match(message)) is not None:
            return self._glog(glog, piece, number, offset)
        if is_exception_line(text) and not orphan:
            return self._exception_line(text, piece, number, offset)
        access = known.ACCESS.match(text)
        if access is not None:
            return self._access(access, None)
        if known.PROGRESS.search(text):
            return "known", "progress bar", None
        found = self._event(text, piece, number, offset)
        if found is not None:
            return found
        why = known.find(text)
        if why is not None:
            return "known", why, None
        if number == self._message_line + 1 and not orphan:
            self._message_line = number
            return "known", "continuation", None
        if batch.is_cut_head(text):
            return "cut", text[: text.index(" ")].lower() + " (cut)", None
        if orphan:
            self._lead = text
            return None
        self.shapes.add(text, number)
        return "unknown", "unknown", None

    def _exception_line(self, text: str, piece: Piece, number: int, offset: int) -> tuple[str, str, Row | None]:
        """`ValueError: ...` ends the open traceback; a pool leak is an event of its own as well. Its message may go on below."""
        if self.open is not None:
            self.open.add(text)
        self._message_line = number
        return self._event(text, piece, number, offset) or ("known", "continuation", None)

    def _reason(self, text: str) -> tuple[str, str, Row | None]:
        """The wrapped half of a failure line."""
        row, self.unexplained = self.unexplained, None
        assert row is not None
        rest = json.loads(row["rest"])
        side = "prefill" if rest["head"].startswith("Prefill") else "decode"
        row["rest"] = rest
        failures.explain(row, text, side)
        row.pop("side")
        row["rest"] = as_json(rest)
        return "known", "continuation", None

    def _router(self, match: Any) -> tuple[str, str, Row | None]:
        stamp = epoch(match["date"], match["time"], match["fraction"])
        if stamp is not None:
            self.saw(stamp)
        if ".rs:" in match["rest"]:
            self.tell_role("router")
            if "started processing request" in match["rest"] and "method=POST" in match["rest"] and stamp is not None and len(self.served) < EVIDENCE_ROWS:
                self.served.append(stamp)
            return "known", "router", None
        return "known", "other logger", None

    def _glog(self, match: Any, piece: Piece, number: int, offset: int) -> tuple[str, str, Row | None]:
        message = match["message"].rstrip()
        listening = known.LISTENING.match(message)
        if listening is not None:
            self.engine_address = listening[1]
        self.counts["glog"] += 1
        for rule in events.GLOG:
            if rule.head in message:
                row: Row = {"kind": rule.kind, "detail": message[:DETAIL_LENGTH]}
                if rule.pattern is not None and (fields := rule.pattern.fullmatch(message)) is not None:
                    row.update(_fields(fields.groupdict()))
                year = self._year()
                if year is not None:
                    piece.stamp = epoch(f"{year}-{match['month']}-{match['day']}", match["time"], match["fraction"])
                return "row", rule.kind, self._keep(self.events, row, piece, number, offset)
        return "known", "Mooncake", None

    # shared ---------------------------------------------------------------------------------------------------------

    def _keep(self, rows: list[Row], row: Row, piece: Piece, number: int, offset: int, role: str | None = None) -> Row:
        """Put the row with its place. `role`: what the line itself shows; else what the log has shown so far."""
        row.update(file=self.file, line=number, offset=offset, launch=self.launch, role=role or self.role, ts=piece.stamp, tags=piece.tags)
        if piece.lead or self._lead:
            lead = {"ray": piece.lead} if piece.lead else {"lead": self._lead[:DETAIL_LENGTH]}
            row["rest"] = as_json({**json.loads(row.get("rest") or "{}"), **lead})
        rows.append(row)
        return row

    def tell_role(self, role: str | None) -> None:
        """A log's role is what its server arguments or, without them, its first telling line say."""
        if role is not None:
            self.roles.add(role)
            if self.role is None:
                self.role = role

    def _year(self) -> int | None:
        """glog stamps have no year: that of the last stamp before."""
        if self.last_stamp is None:
            return None
        from time import gmtime

        return gmtime(self.last_stamp).tm_year


def _fields(groups: dict[str, str | None]) -> Row:
    """Named groups of a rule as columns; those without a column go to `rest`."""
    row: Row = {}
    rest = {}
    for name, value in groups.items():
        if value is None:
            continue
        if name in ("tokens", "room"):
            if len(value) <= 19 and int(value) < 1 << 63:
                row[name] = int(value)
            else:
                rest[name] = value
        elif name in ("session", "peer"):
            row[name] = value
        else:
            rest[name] = value[:DETAIL_LENGTH]
    if rest:
        row["rest"] = as_json(rest)
    return row


def _carriage_returns(text: str) -> list[str]:
    """A progress bar writes over itself with carriage returns; a CRLF file ends every line with one."""
    if "\r" not in text:
        return [text]
    return [part for part in text.split("\r") if part] or [""]


def _role_of_frame(text: str) -> str | None:
    return "decode" if "disagg_decode" in text else "prefill" if "disagg_prefill" in text else None
