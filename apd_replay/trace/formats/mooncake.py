"""Mooncake JSONL (github.com/kvcache-ai/Mooncake): timestamp (ms), input_length, output_length, hash_ids of 512 tokens; no sessions."""

from __future__ import annotations

from apd_replay.trace.rows import Format, Record, Row

BLOCK_TOKENS = 512


def rows(record: Record) -> list[Row]:
    ids = record.blocks()
    return [Row(record.line, record.number("timestamp"), record.whole("input_length", 1), record.whole("output_length"),
                hash_ids=ids, block_tokens=BLOCK_TOKENS if ids else None)]


FORMATS = (
    Format("mooncake", "Mooncake JSON lines: milliseconds, every request a session of its own", "json", rows, per_second=1000,
           keys=frozenset({"timestamp", "input_length", "output_length"}), lacks=frozenset({"session_id", "chat_id"})),
)
