"""TraceLab's replay CSV (github.com/uw-syfi/TraceLab, replay/): one round a row.

session_id (or id), arrival_time (ms, the session's; may be absent: 0), round_idx, prefix_len (context kept), input_len
(tokens appended), output_len, tool_wait_after_ms (answer's end to the next send). Prompt = prefix_len + input_len.
"""

from __future__ import annotations

from apd_replay.trace.rows import Format, Record, Row


def rows(record: Record) -> list[Row]:
    session = record.id("session_id" if "session_id" in record.values else "id")
    prefix, appended = record.whole("prefix_len"), record.whole("input_len")
    record.values["prompt"] = prefix + appended
    return [Row(record.line, record.number("arrival_time") if record.has("arrival_time") else 0, record.whole("prompt", 1),
                record.whole("output_len"), session, record.whole("round_idx"), prefix_tokens=prefix,
                wait_after_s=record.maybe_seconds("tool_wait_after_ms", per_second=1000))]


FORMATS = (
    Format("tracelab", "TraceLab replay CSV: appended lengths and tool waits", "csv", rows, per_second=1000, session_stamps=True,
           keys=frozenset({"round_idx", "prefix_len", "input_len", "output_len", "tool_wait_after_ms"})),
)
