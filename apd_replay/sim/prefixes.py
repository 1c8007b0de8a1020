"""The radix cache of a P or of a unified worker: which prompt heads it holds, least recently used out first.

A session's prompts repeat each other's head and, as a rule, share nothing with other sessions. So one entry holds a session's own
tokens, whatever their number; only blocks that several sessions have in common are kept one by one.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol


class Prompt(Protocol):
    session: str
    turn: int
    hash_ids: tuple[int, ...] | None
    input_tokens: int


@dataclass(frozen=True, slots=True)
class SharedHeads:
    """For each session the number of leading blocks that other sessions have too (absent: none); blocks of `block_tokens`."""

    blocks: dict[str, int] = field(default_factory=dict)
    block_tokens: int = 0

    @classmethod
    def of(cls, prompts: Iterable[tuple[str, tuple[int, ...] | None]], block_tokens: int) -> SharedHeads:
        """`prompts`: (session, block ids) of every turn."""
        ids: dict[str, set[int]] = {}
        longest: dict[str, list[tuple[int, ...]]] = {}
        for session, blocks in prompts:
            if blocks:
                ids.setdefault(session, set()).update(blocks)
                longest.setdefault(session, []).append(blocks)
        owners = Counter(block for own in ids.values() for block in own)
        heads = {}
        for session, prompts_of in longest.items():
            head = max(_leading(blocks, owners) for blocks in prompts_of)
            if head:
                heads[session] = head
        return cls(heads, block_tokens)


def _leading(blocks: tuple[int, ...], owners: Counter[int]) -> int:
    for k, block in enumerate(blocks):
        if owners[block] < 2:
            return k
    return len(blocks)


class PrefixCache:
    """`size` counts the tokens kept for nobody in particular: all of them may be evicted."""

    __slots__ = ("_entries", "_heads", "size")

    def __init__(self, heads: SharedHeads) -> None:
        self._heads = heads
        self._entries: OrderedDict[int | str, int] = OrderedDict()  # block id, or session -> tokens
        self.size = 0

    def match(self, prompt: Prompt) -> tuple[int, int]:
        """(tokens of the prompt's head that are held, how many of those under shared blocks). At least one token is left to compute."""
        entries = self._entries
        head, limit = 0, prompt.input_tokens - 1
        blocks = self._shared_blocks(prompt)
        if blocks:
            count = 0
            for block in blocks:
                if block not in entries:
                    break
                count += 1
            for block in reversed(blocks[:count]):  # a prompt's tail goes before its head
                entries.move_to_end(block)
            head = min(count * self._heads.block_tokens, limit)
            if count < len(blocks):
                return head, head
        return min(head + entries.get(prompt.session, 0), limit), head

    def take(self, session: str) -> int:
        """The session's own tokens are in use by a request from here on: they count there, not here, and cannot be evicted."""
        held = self._entries.pop(session, 0)
        self.size -= held
        return held

    def insert(self, prompt: Prompt, tokens: int) -> int:
        """Keep `tokens` of the prompt (and answer); the tokens that this adds to `size`."""
        entries, before = self._entries, self.size
        blocks, width = self._shared_blocks(prompt), self._heads.block_tokens
        for block in reversed(blocks):
            if block in entries:
                entries.move_to_end(block)
            else:
                entries[block] = width
                self.size += width
        own = tokens - len(blocks) * width
        self.size -= entries.pop(prompt.session, 0)
        if own > 0:
            entries[prompt.session] = own
            self.size += own
        return self.size - before

    def limit(self, session: str, history: int) -> int:
        """The session's next prompt repeats only `history` tokens: what is kept beyond them can never match again. What was freed."""
        held = self._entries.get(session, 0)
        if held:
            own = max(0, history - self._heads.blocks.get(session, 0) * self._heads.block_tokens)
            if held > own:
                self._entries[session] = own
                self.size -= held - own
                return held - own
        return 0

    def evict(self, tokens: int) -> int:
        """Drop at least `tokens`, or all there are; a session's entry loses its end first. What was freed."""
        entries, freed = self._entries, 0
        while freed < tokens and entries:
            key = next(iter(entries))
            held = entries[key]
            if isinstance(key, str) and held > tokens - freed:
                entries[key] = held - (tokens - freed)
                freed = tokens
            else:
                del entries[key]
                freed += held
        self.size -= freed
        return freed

    def _shared_blocks(self, prompt: Prompt) -> tuple[int, ...]:
        head = self._heads.blocks.get(prompt.session, 0)
        return prompt.hash_ids[:head] if head and prompt.hash_ids else ()
