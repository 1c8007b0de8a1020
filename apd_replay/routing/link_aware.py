"""Remedy F5: the P with the fewest transfers under way, over a link that works."""

from __future__ import annotations

from apd_replay.routing.view import ClusterView, LinkView, Prompt

PROBE_S = 30.0
"""How long a link that failed is left alone before one request may try it again."""


class LinkAwarePrefill:
    """A link whose last word was a failure is avoided; once PROBE_S have passed, one request at a time may probe it, and a success clears it.
    Where every link to the D has failed, the one that failed longest ago is tried. Ties rotate."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, prompt: Prompt, view: ClusterView, decode: int) -> int:
        count = len(view.prefill)
        inflight = [0] * count
        for (p, _), link in view.links.items():
            inflight[p] += link.inflight
        usable = [p for p in range(count) if _usable(view.link(p, decode), view.now)]
        self._next += 1
        if not usable:
            return min(range(count), key=lambda p: view.link(p, decode).failed_t or 0.0)
        return min(usable, key=lambda p: (inflight[p], (p - self._next + 1) % count))


def _usable(link: LinkView, now: float) -> bool:
    if link.failed_t is None or (link.succeeded_t is not None and link.succeeded_t > link.failed_t):
        return True
    return now - link.failed_t >= PROBE_S and link.inflight == 0
