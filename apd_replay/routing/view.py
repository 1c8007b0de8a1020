"""What a router knows when it chooses: its own books, and what workers last reported. Policies read it; only the replay core writes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Load:
    """A worker's own word on itself, as an admission answer or a load snapshot carries it. None: not said."""

    t: float
    available_tokens: int | None = None
    token_usage: float | None = None
    running: int | None = None
    transfer_queue: int | None = None
    prealloc_queue: int | None = None
    retracted_queue: int | None = None


@dataclass(slots=True)
class WorkerView:
    """One worker as the router sees it. `resident` maps a session to the tokens that the router believes are kept there."""

    name: str
    pool_tokens: int = 0
    inflight: int = 0
    inflight_tokens: int = 0
    pause_until: float = 0.0
    resident: dict[str, int] = field(default_factory=dict)
    load: Load | None = None


@dataclass(slots=True)
class LinkView:
    """One P -> D link: transfers under way, and when a failure and a success were last seen on it."""

    inflight: int = 0
    failed_t: float | None = None
    succeeded_t: float | None = None


@dataclass(slots=True)
class ClusterView:
    """`decode` holds the D's, or the unified workers of a data-parallel cluster; `prefill` is empty there."""

    decode: list[WorkerView]
    prefill: list[WorkerView]
    now: float = 0.0
    links: dict[tuple[int, int], LinkView] = field(default_factory=dict)

    def link(self, prefill: int, decode: int) -> LinkView:
        found = self.links.get((prefill, decode))
        if found is None:
            found = self.links[prefill, decode] = LinkView()
        return found


class Prompt(Protocol):
    """The part of a request that a policy may read."""

    session: str
    turn: int
    input_tokens: int
    asked_output_tokens: int
    hash_ids: tuple[int, ...] | None
    shared_tokens: int | None


class DecodePolicy(Protocol):
    """Chooses the D (or the unified worker) of a turn. `home`: the worker that holds the session, None on its first turn."""

    def choose(self, prompt: Prompt, view: ClusterView, home: int | None) -> int: ...

    def rejected(self, prompt: Prompt, view: ClusterView, home: int) -> int:
        """After `home` refused a direct append: the D that the turn goes to through a P."""
        ...

    def sent(self, prompt: Prompt, worker: int) -> None:
        """The turn left for `worker`: what the policy remembers about who holds which blocks."""
        ...


class PrefillPolicy(Protocol):
    """Chooses the P of a turn that is to be served by the D `decode`."""

    def choose(self, prompt: Prompt, view: ClusterView, decode: int) -> int: ...
