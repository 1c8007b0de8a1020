"""Transfers between P and D as events: a failed send, the first good one after it, and every failed room with its first reason.

The transfer threads call these, so they only record. SGLang's manager object gets its methods wrapped on the object itself: which
class it is depends on the transfer backend.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from apd_replay.sglang_plugin.events import Events


def watch(manager: Any, role: str, events: Events) -> list[str]:
    """Returns the names of the methods that were wrapped. `manager`: the worker's KV manager."""
    wrapped = []
    for name in ("record_failure", "conclude_failure"):  # 0.5.21's P calls the second one for what goes wrong while it sends
        fail = getattr(manager, name, None)
        if fail is not None:
            setattr(manager, name, _recording(fail, manager, role, events))
            wrapped.append(name)
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


def _recording(fail: Callable[..., Any], manager: Any, role: str, events: Events) -> Callable[..., Any]:
    def failed(*args: Any, **named: Any) -> Any:
        room = args[0] if args else named.get("bootstrap_room")
        reason = args[1] if len(args) > 1 else named.get("failure_reason")
        if room not in getattr(manager, "failure_records", ()):  # further pieces of a prompt fail after the first
            events.record("transfer_failed", role=role, room=room, reason=str(reason)[:300])
        return fail(*args, **named)

    return failed
