"""Which worker stands behind an address, and who is at the other end of an event: found through the rooms that both sides know.

A P names a D by its Mooncake session (`ip:port`, a new one after each restart) or by its status endpoint, never by a name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

_LATCH_REACH = 8  # lines between a `Session a:p failed.` and the failure that caused it


class Event(NamedTuple):
    """The part of a worker_events row that the joins need."""

    worker: str
    role: str | None
    kind: str
    room: int | None
    peer: str | None
    file: str
    line: int
    ts: float | None
    endpoint: bool = False


@dataclass
class Links:
    """room -> worker on either side, address -> D, and addresses of the D's Mooncake sessions."""

    prefill_of: dict[int, str] = field(default_factory=dict)
    decode_of: dict[int, str] = field(default_factory=dict)
    behind: dict[str, str] = field(default_factory=dict)
    sessions: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    latches: dict[tuple[str, int], str] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)  # of a D, where not 1
    queues: dict[str, int] = field(default_factory=dict)  # of a P for each D, where the run states them

    def other_side(self, event: Event) -> str | None:
        """The worker at the other end of an event's link; None where no shared room tells it."""
        if event.role == "decode":
            found = self.prefill_of.get(event.room) if event.room is not None else None
            return found or (self.behind.get(event.peer) if event.peer else None)
        found = self.decode_of.get(event.room) if event.room is not None else None
        if found is None and event.peer is not None:
            found = self.latches.get((event.file, event.line)) or self.behind.get(event.peer)
        return found


def find(events: Iterable[Event], prefill_of: dict[int, str], decode_of: dict[int, str], addresses: dict[str, str]) -> Links:
    """`prefill_of`, `decode_of`: what the client's records say of each room; `addresses`: what a worker's own log says of its address."""
    links = Links(dict(prefill_of), dict(decode_of), dict(addresses))
    for address, worker in addresses.items():
        links.sessions[worker].add(address)
    events = [e for e in events if e.room is not None or e.peer is not None]
    for event in events:
        if event.room is not None and event.role in ("prefill", "decode"):
            (links.prefill_of if event.role == "prefill" else links.decode_of).setdefault(event.room, event.worker)
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for event in events:
        if event.role == "prefill" and event.peer is not None and event.room in links.decode_of:
            votes[event.peer][links.decode_of[event.room]] += 1
    for address, counted in votes.items():
        links.behind.setdefault(address, counted.most_common(1)[0][0])
    _latches(events, links)
    for event in events:
        if event.role == "prefill" and event.peer is not None and not event.endpoint and event.peer in links.behind:
            links.sessions[links.behind[event.peer]].add(event.peer)
    return links


def _latches(events: list[Event], links: Links) -> None:
    """A latch names a session only; where no rejection shares that session, the send failure printed right after it tells the D."""
    for at, event in enumerate(events):
        if event.kind != "link_latched" or event.peer is None or event.peer in links.behind:
            continue
        for later in events[at + 1 : at + 1 + _LATCH_REACH]:
            if later.file != event.file or later.line - event.line > _LATCH_REACH:
                break
            same_host = later.peer is not None and later.peer.rpartition(":")[0] == event.peer.rpartition(":")[0]
            if later.kind == "transfer_error" and later.endpoint and same_host and later.room in links.decode_of:
                links.latches[event.file, event.line] = links.decode_of[later.room]
                links.behind[event.peer] = links.decode_of[later.room]
                break
