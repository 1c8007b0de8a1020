"""Remedy F2: a session may leave its D, when that saves more than it costs."""

from __future__ import annotations

from apd_replay.routing.room import shortfall_tokens
from apd_replay.routing.view import ClusterView, DecodePolicy, Prompt

HYSTERESIS = 0.25
"""The move must save this part of the prompt beyond what staying costs: two D's that are equally full never play ping-pong."""


class Migrating:
    """Wraps the policy that chooses a session's first D. Moves happen at a rejection only: then the whole prompt goes through a P wherever it
    ends up, so that moving costs no more prefill or transfer than staying; a turn that its D would take is cheaper than any move.

    Expected cost of a D: the tokens of others that holding this session displaces there, each of which comes back as a rejected turn.
    The replay core closes the old home as the turn leaves for the new one: never two homes.
    """

    def __init__(self, first: DecodePolicy) -> None:
        self._first = first

    def choose(self, prompt: Prompt, view: ClusterView, home: int | None) -> int:
        return self._first.choose(prompt, view, home)

    def rejected(self, prompt: Prompt, view: ClusterView, home: int) -> int:
        cost = [shortfall_tokens(prompt, worker, view.now) for worker in view.decode]
        best = min(range(len(cost)), key=lambda d: (cost[d], view.decode[d].inflight_tokens, d))
        return best if cost[home] - cost[best] > HYSTERESIS * prompt.input_tokens else home

    def sent(self, prompt: Prompt, worker: int) -> None:
        self._first.sent(prompt, worker)
