"""The data-parallel baseline: SGLang router's cache_aware policy, with its documented thresholds (SGLANG.md 5.2).

Loads far apart: the shortest queue. Else the worker that was sent most of the prompt's head, if that is more than `cache_threshold`
of it; else the least loaded worker, the one with the smallest tree among equals. (Router 0.3.2 takes the first of equals, older ones
the smallest tree outright; it only matters while the cluster is nearly idle.)
"""

from __future__ import annotations

from collections import OrderedDict

from apd_replay.routing.view import ClusterView, Prompt


class CacheAware:
    """`max_tree_tokens` bounds what is remembered of one worker, oldest out first. The tree holds prompts, as sent: never answers."""

    def __init__(self, *, cache_threshold: float = 0.3, balance_abs_threshold: int = 64, balance_rel_threshold: float = 1.5,
                 max_tree_tokens: int = 67_108_864, block_tokens: int | None = None) -> None:
        self._threshold, self._abs, self._rel = cache_threshold, balance_abs_threshold, balance_rel_threshold
        self._max_tree_tokens, self._block_tokens = max_tree_tokens, block_tokens or 0
        self._trees: list[OrderedDict[int | str, int]] = []  # per worker: block id, or session -> tokens
        self._sizes: list[int] = []

    def choose(self, prompt: Prompt, view: ClusterView, home: int | None) -> int:
        workers = view.decode
        while len(self._trees) < len(workers):
            self._trees.append(OrderedDict())
            self._sizes.append(0)
        loads = [worker.inflight for worker in workers]
        least, most = min(loads), max(loads)
        if most - least > self._abs and most > self._rel * least:
            return loads.index(least)
        matched = [self._matched(prompt, tree) for tree in self._trees[: len(workers)]]
        longest = max(matched)
        if longest > self._threshold * prompt.input_tokens:
            return matched.index(longest)
        return min(range(len(workers)), key=lambda w: (loads[w], self._sizes[w], w))

    def rejected(self, prompt: Prompt, view: ClusterView, home: int) -> int:
        return home

    def sent(self, prompt: Prompt, worker: int) -> None:
        tree = self._trees[worker]
        size = self._sizes[worker]
        if prompt.turn == 0 and self._block_tokens:  # a later turn's blocks only matter to its own session
            for block in reversed(prompt.hash_ids or ()):
                if block not in tree:
                    size += self._block_tokens
                    tree[block] = self._block_tokens
                tree.move_to_end(block)
        size += prompt.input_tokens - tree.pop(prompt.session, 0)
        tree[prompt.session] = prompt.input_tokens
        while size > self._max_tree_tokens and tree:
            size -= tree.popitem(last=False)[1]
        self._sizes[worker] = size

    def _matched(self, prompt: Prompt, tree: OrderedDict[int | str, int]) -> int:
        """Leading tokens of the prompt that the worker has been sent before."""
        sent = tree.get(prompt.session, 0)
        if sent:
            shared = prompt.input_tokens if prompt.shared_tokens is None else min(prompt.shared_tokens, prompt.input_tokens)
            return min(sent, shared)
        count = 0
        for block in prompt.hash_ids or ():
            if block not in tree:
                break
            count += 1
        return min(count * self._block_tokens, prompt.input_tokens)
