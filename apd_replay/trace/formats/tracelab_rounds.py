"""TraceLab's sanitized_round_trace.jsonl: one round of a real coding session a line.

session_id, round_index, input_tokens_total, output_tokens, timing_events[]: what the user and the tools said comes before the
send, what the model said after it; so the send is the last input event and the answer's end the last output event.
`prefix_tokens` is what the provider's cache held, not what the prompts share, and is left alone.
"""

from __future__ import annotations

from apd_replay.trace.rows import Format, Record, Row, RowError, ticks

INPUT_EVENTS = {"user_message", "tool_result"}
OUTPUT_EVENTS = {"reasoning", "text", "tool_call"}
PER_SECOND = 10_000_000


def rows(record: Record) -> list[Row]:
    events = record.values.get("timing_events")
    if not isinstance(events, list) or not all(isinstance(e, dict) for e in events):
        raise RowError("timing_events", "expected a list of events")
    sent = [ticks(Record(record.line, e, False), "timestamp") for e in events if e.get("event_type") in INPUT_EVENTS]
    said = [ticks(Record(record.line, e, False), "timestamp") for e in events if e.get("event_type") in OUTPUT_EVENTS]
    if not sent:
        raise RowError("timing_events", f"no {' or '.join(sorted(INPUT_EVENTS))}: the time of the send is unknown")
    served = max(0, max(said) - max(sent)) / PER_SECOND if said else None
    return [Row(record.line, max(sent), record.whole("input_tokens_total", 1), record.whole("output_tokens"), record.id("session_id"),
                record.whole("round_index"), served_s=served)]


FORMATS = (
    Format("tracelab-rounds", "TraceLab sanitized rounds: send and answer times from the events", "json", rows, per_second=PER_SECOND,
           keys=frozenset({"session_id", "round_index", "input_tokens_total", "output_tokens", "timing_events"})),
)
