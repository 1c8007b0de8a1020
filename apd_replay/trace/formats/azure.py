"""Azure LLM inference CSV (github.com/Azure/AzurePublicDataset): TIMESTAMP (date and time, to 100 ns), ContextTokens,
GeneratedTokens; no sessions."""

from __future__ import annotations

from apd_replay.trace.rows import Format, Record, Row, ticks


def rows(record: Record) -> list[Row]:
    return [Row(record.line, ticks(record, "TIMESTAMP"), record.whole("ContextTokens", 1), record.whole("GeneratedTokens"))]


FORMATS = (
    Format("azure", "Azure CSV: every request a session of its own", "csv", rows, per_second=10_000_000,
           keys=frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"})),
)
