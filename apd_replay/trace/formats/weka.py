"""kv-cache-tester / Weka (github.com/callanjfox/kv-cache-tester, traces/*.json): one conversation an object.

id, block_size (64), hash_id_scope, requests[]: t (s from the conversation's start), in, out, hash_ids (whole blocks only),
api_time, think_time. A request of type `subagent` holds the requests of a sub-agent, which becomes a session of its own.
One object a file, or one a line: `jq -c . traces/*.json > traces.jsonl` makes one trace of many conversations.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

from apd_replay.trace.rows import Format, Record, Row, RowError


def rows(record: Record) -> Iterator[Row]:
    conversation = record.id("id")
    block = record.whole("block_size", 1) if record.has("block_size") else 64
    shared = record.values.get("hash_id_scope") == "global"
    # Ids count from 1 in every conversation: without a namespace, strangers would share their prompts.
    base = 0 if shared else (int.from_bytes(blake2b(conversation.encode(), digest_size=5).digest(), "big") & (2**39 - 1)) << 24
    yield from _requests(record, record.values.get("requests"), conversation, block, base)


def _requests(record: Record, entries: Any, session: str, block: int, base: int) -> Iterator[Row]:
    if not isinstance(entries, list):
        raise RowError("requests", "expected a list of requests")
    turn = agents = 0
    for k, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise RowError(f"requests[{k}]", "expected a JSON object")
        request = Record(record.line, entry, record.textual)
        try:
            if entry.get("type") == "subagent":
                agents += 1
                name = request.maybe_id("agent_id") or "agent"
                yield from _requests(request, entry.get("requests"), f"{session}/{agents}-{name}", block, base)
                continue
            ids = request.blocks()
            if ids and base and not 0 <= min(ids) <= max(ids) < 2**24:
                raise RowError("hash_ids", f"expected local ids from 0 to {2**24 - 1}")
            yield Row(record.line, request.number("t"), request.whole("in", 1), request.whole("out"), session, turn,
                      hash_ids=tuple(base + i for i in ids) if ids else None, block_tokens=block if ids else None,
                      think_s=request.maybe_seconds("think_time"), served_s=request.maybe_seconds("api_time"))
            turn += 1
        except RowError as error:
            raise RowError(f"requests[{k}].{error.column}", error.problem) from None
        finally:
            record.quoted += request.quoted


FORMATS = (
    Format("weka", "kv-cache-tester conversations: one JSON object each, sub-agents as sessions", "json", rows, per_second=1,
           keys=frozenset({"id", "requests"})),
)
