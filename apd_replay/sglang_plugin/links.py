"""Transfers between P and D as events: a failed send, the first good one after it, and every failed room with its reason.

The transfer threads call these, so they only record. SGLang's manager object gets its two methods wrapped on the object itself: which
class it is depends on the transfer backend.
"""

from __future__ import annotations

import time
from typing import Any

from apd_replay.sglang_plugin.events import Events


def watch(manager: Any, role: str, events: Events) -> list[str]:
    """Returns the names of the methods that were wrapped. `manager`: the worker's KV manager."""
    wrapped = []
    fail = getattr(manager, "record_failure", None)
    if fail is not None:

        def record_failure(room: Any, reason: Any, *rest: Any, **named: Any) -> Any:
            events.record("transfer_failed", role=role, room=room, reason=str(reason)[:300])
            return fail(room, reason, *rest, **named)

        manager.record_failure = record_failure
        wrapped.append("record_failure")
    send = getattr(manager, "send_kvcache", None)
    if role == "prefill" and send is not None:
        failed: set[str] = set()

        def send_kvcache(peer: Any, indices: Any, *rest: Any, **named: Any) -> Any:
            began = time.monotonic()
            result = send(peer, indices, *rest, **named)
            if isinstance(result, int) and result != 0:  # Mooncake's return code; NIXL returns a handle
                failed.add(str(peer))
                events.record("link_failed", peer=str(peer), code=result, tokens=len(indices), took_s=round(time.monotonic() - began, 6))
            elif str(peer) in failed:
                failed.discard(str(peer))
                events.record("link_recovered", peer=str(peer))
            return result

        manager.send_kvcache = send_kvcache
        wrapped.append("send_kvcache")
    return wrapped
