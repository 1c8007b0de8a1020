"""BurstGPT CSV (github.com/HPMLL/BurstGPT): Timestamp (s), Model, Request tokens, Response tokens, Total tokens, Log Type.
Its third file also has Session ID and Elapsed time (s, the answer's duration); a row without them is a session of its own."""

from __future__ import annotations

from apd_replay.trace.rows import Format, Record, Row


def rows(record: Record) -> list[Row]:
    return [Row(record.line, record.number("Timestamp"), record.whole("Request tokens", 1), record.whole("Response tokens"),
                session=record.maybe_id("Session ID"), served_s=record.maybe_seconds("Elapsed time"))]


FORMATS = (
    Format("burstgpt", "BurstGPT CSV, with or without Session ID", "csv", rows, per_second=1,
           keys=frozenset({"Timestamp", "Request tokens", "Response tokens"})),
)
