"""Session JSONL: one request a line, each with its session and its send time.

session_id, timestamp (s), input_length, output_length; may be there: turn (from 0 or 1), hash_ids (blocks of 512 tokens),
chat_id and parent_chat_id (-1: none), api_time and think_time (s; kv-cache-tester's, in files converted from it).
"""

from __future__ import annotations

from apd_replay.trace.rows import Format, Record, Row

BLOCK_TOKENS = 512


def rows(record: Record) -> list[Row]:
    session, ids = record.id("session_id"), record.blocks()
    return [Row(
        record.line, record.number("timestamp"), record.whole("input_length", 1), record.whole("output_length"), session,
        turn=record.whole("turn") if record.has("turn") else None,
        chat=record.maybe_id("chat_id"), parent=record.maybe_id("parent_chat_id", none=("-1",)),
        hash_ids=ids, block_tokens=BLOCK_TOKENS if ids else None,
        think_s=record.maybe_seconds("think_time"), served_s=record.maybe_seconds("api_time"),
    )]


FORMATS = (
    Format("session", "JSON lines with session_id; stamps in seconds, or epoch seconds or milliseconds", "json", rows,
           keys=frozenset({"session_id", "timestamp", "input_length", "output_length"})),
    Format("session-ms", "the same with stamps in milliseconds from any origin (by name only)", "json", rows, per_second=1000),
)
