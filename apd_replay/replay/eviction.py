"""Which sessions a D evicts first. One rule for the simulated D and for the plugin of a real one."""

from __future__ import annotations


def rank(eviction: str, direct_turns: int, used_s: float) -> tuple[bool, float]:
    """Sort key of a session between two turns: the smallest goes first. `direct_turns`: turns appended since its KV came; `used_s`: when it
    was last in use.

    `idle_lru`: the longest idle. `tiered` (remedy F3): cold sessions, then hot ones, each tier the longest idle first. A session is cold until
    a turn was appended to what is kept of it. Agents come back in turn, so with more sessions than room the longest idle is the very next to
    return: a plain LRU evicts everybody just before they are needed. Tiers let a session on probation take nothing from one that has proved itself.
    """
    return eviction == "tiered" and direct_turns > 0, used_s
