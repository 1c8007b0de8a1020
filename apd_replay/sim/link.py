"""KV on its way from one P to the D's: transfer queues, Mooncake's time limit, and the latch (SGLANG.md 3.1 to 3.3).

A P has four transfer queues; all requests to a D use the one that the sum of its ports modulo 4 names, and a queue sends one
piece after the other. So when a piece is handed over, its fate and its end are known: nothing later in the queue can change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from apd_replay.sim.cost import Cost

QUEUES = 4  # SGLANG_DISAGGREGATION_QUEUE_SIZE
LIMIT_S = 30.0  # Mooncake's limit of one send, and on top of it
LIMIT_S_PER_BYTE = 1e-9
PROBE_S = 30.0  # interval of the probe that clears a latch


@dataclass(frozen=True, slots=True)
class Peer:
    """A D as a P's log names it: mooncake session `host:session_port`, status endpoint `host:status_port`."""

    host: str
    session_port: int
    status_port: int

    @classmethod
    def of(cls, decode: int) -> Peer:
        return cls(f"10.0.0.{decode + 1}", 15100 + decode, 41000 + decode)

    @property
    def session(self) -> str:
        return f"{self.host}:{self.session_port}"

    @property
    def status(self) -> str:
        return f"{self.host}:{self.status_port}"

    @property
    def queue(self) -> int:
        return self.session_port % QUEUES


class Outage(NamedTuple):
    """KV sent to the D `decode` stands still from `start` to `end`: a fault that an experiment puts in."""

    decode: int
    start: float
    end: float


class Piece(NamedTuple):
    """What became of one piece: when, and `None`, `kv_transfer` (a send that failed) or `peer_dead` (not even tried)."""

    end: float
    error: str | None
    latched: bool = False  # this failure latched the link


class Link:
    """The transfer queues of one P."""

    __slots__ = ("_cost", "_free_at", "_latch", "_latched_at", "_limit", "_outages", "_probe", "_queue_of", "recovered")

    def __init__(self, cost: Cost, peers: Sequence[Peer], outages: Sequence[Outage], *, latch: bool, probe: bool, limit: bool,
                 head_of_line: bool) -> None:
        self._cost, self._outages = cost, outages
        self._latch, self._probe, self._limit = latch, probe, limit
        self._queue_of = [peer.queue if head_of_line else d for d, peer in enumerate(peers)]
        self._free_at = [0.0] * (max(self._queue_of) + 1)
        self._latched_at: dict[int, float] = {}
        self.recovered: list[tuple[float, int]] = []  # (when, D) of latches that the probe has cleared; whoever logs them empties it

    def send(self, decode: int, tokens: int, now: float, runs: float = 0.0) -> Piece:
        """Hand a piece over at `now`; calls come in the order of time. `runs`: of slots on the D that are no neighbours of the one before."""
        queue = self._queue_of[decode]
        start = max(now, self._free_at[queue])
        if self._is_latched(decode, start):
            return Piece(start, "peer_dead")
        end = start + self._cost.transfer_s(tokens, runs)
        for outage in self._outages:
            if outage.decode == decode and outage.start < end and start < outage.end:
                end += outage.end - max(start, outage.start)
        limit = start + LIMIT_S + tokens * self._cost.bytes_per_token * LIMIT_S_PER_BYTE
        if self._limit and end > limit:
            self._free_at[queue] = limit
            if self._latch:
                self._latched_at[decode] = limit
            return Piece(limit, "kv_transfer", self._latch)
        self._free_at[queue] = end
        return Piece(end, None)

    def _is_latched(self, decode: int, t: float) -> bool:
        since = self._latched_at.get(decode)
        if since is None or t < since:
            return False
        if self._probe:
            back = self._probed(decode, since)
            if back <= t:
                del self._latched_at[decode]
                self.recovered.append((back, decode))
                return False
        return True

    def _probed(self, decode: int, since: float) -> float:
        """When the probe first finds the D answering again."""
        t = since + PROBE_S
        while any(o.decode == decode and o.start <= t < o.end for o in self._outages):
            t += PROBE_S
        return t
