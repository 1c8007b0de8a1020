"""SGLang's KV pool and radix tree, as far as slots need them. The same calls serve 0.5.15 and 0.5.21."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Pin:
    """A lock on a node of the tree, which holds the whole path from the root. `receipt` is what SGLang wants back to release it."""

    node: Any
    receipt: Any


class Tree:
    """Only to be called from the scheduler's own thread."""

    def __init__(self, scheduler: Any) -> None:
        self._cache = scheduler.tree_cache
        self._allocator = scheduler.token_to_kv_pool_allocator
        self.total_tokens: int = scheduler.max_total_num_tokens
        self.page_size: int = self._allocator.page_size

    def free_tokens(self) -> int:
        """What an allocation can have: the free pool, and cached KV that nobody holds."""
        return int(self._allocator.available_size() + self._cache.evictable_size())

    def pin(self, req: Any) -> tuple[Pin | None, int]:
        """Lock the longest part of the request's prompt and answer that is in the tree; also its length, tokens."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        salt = {"cache_salt": req.cache_salt} if hasattr(req, "cache_salt") else {}
        key = RadixKey(req.origin_input_ids + req.output_ids, req.extra_key, **salt)
        found = self._cache.match_prefix(MatchPrefixParams(key=key))
        tokens = len(found.device_indices)
        if tokens == 0:
            return None, 0
        node = found.last_device_node
        return Pin(node, self._cache.inc_lock_ref(node).to_dec_params()), tokens

    def unpin(self, pin: Pin | None) -> int:
        """Release a lock; the tokens that nobody holds any longer."""
        if pin is None:
            return 0
        before = self._cache.evictable_size()
        self._cache.dec_lock_ref(pin.node, pin.receipt)
        return int(self._cache.evictable_size() - before)
