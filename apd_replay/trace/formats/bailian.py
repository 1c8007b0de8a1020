"""Bailian JSONL (github.com/alibaba-edu/qwen-bailian-usagetraces-anon): chat_id, parent_chat_id (-1: none), timestamp (s),
input_length (the whole prompt), output_length, turn, hash_ids of 16 tokens. A session is a root and all that descends from it."""

from __future__ import annotations

from apd_replay.trace.rows import Format, Record, Row

BLOCK_TOKENS = 16


def rows(record: Record) -> list[Row]:
    ids = record.blocks()
    return [Row(record.line, record.number("timestamp"), record.whole("input_length", 1), record.whole("output_length"),
                turn=record.whole("turn") if record.has("turn") else None,
                chat=record.id("chat_id"), parent=record.maybe_id("parent_chat_id", none=("-1",)),
                hash_ids=ids, block_tokens=BLOCK_TOKENS if ids else None)]


FORMATS = (
    Format("bailian", "Bailian JSON lines: sessions by parent_chat_id, hash_ids of 16 tokens", "json", rows,
           keys=frozenset({"chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"}), lacks=frozenset({"session_id"})),
)
