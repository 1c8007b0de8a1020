"""Where SGLang gives KV memory out and takes it back: idle slots make way there, and a finished turn leaves its slot.

Hooks on a decode worker (hooks.py); in those around a function it is the second argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apd_replay.sglang_plugin.direct import LONGEST_ANSWER_TOKENS
from apd_replay.sglang_plugin.resident import Resident


def release(resident: Resident, original: Callable[..., None], req: Any, tree_cache: Any, is_insert: bool = True) -> None:
    """release_kv_cache. A retracted request comes back and is not over; any other end leaves in the tree what the session keeps."""
    comes_back = not is_insert and not req.finished()
    original(req, tree_cache, is_insert)
    if not comes_back:
        resident.ended(req, keep=True)


def preallocate(resident: Resident, original: Callable[..., tuple[list[Any], list[Any]]], queue: Any, *args: Any, **named: Any) -> Any:
    """DecodePreallocQueue.pop_preallocated: the first request that waits for room, by the stock function's own rule (SGLANG 3.5)."""
    first = next((waiting.req for waiting in queue.queue if waiting.waiting_for_input and not waiting.req.finished()), None)
    if first is not None:
        running = queue.scheduler.running_batch.reqs
        retractable = sum(len(r.origin_input_ids) + len(r.output_ids) for r in running)
        prompt = len(first.origin_input_ids)
        need = max(prompt + queue.num_reserved_decode_tokens, prompt + min(first.sampling_params.max_new_tokens, LONGEST_ANSWER_TOKENS) - retractable)
        _make_room(resident, need - queue._allocatable_token_budgets(retractable_tokens=retractable, count_retracted=True))
    popped, failed = original(queue, *args, **named)
    for waiting in failed:
        resident.ended(waiting.req, keep=True)
    return popped, failed


def resume(resident: Resident, original: Callable[..., list[Any]], queue: Any, *args: Any, **named: Any) -> list[Any]:
    """DecodePreallocQueue.resume_retracted_reqs."""
    if queue.retracted_queue:
        need, _ = queue._prealloc_required_tokens(queue.retracted_queue[0])
        _make_room(resident, need - queue._allocatable_token_budgets(count_retracted=False))
    resumed = original(queue, *args, **named)
    for req in resumed:
        if not hasattr(req, "lock_receipt") and req.last_node is None:
            # 0.5.15 would match the request against the tree again without locking what it finds, and later release a lock it
            # never took: another's. It owns all of its KV: let it start at the root, as later versions do.
            req.last_node = req.last_host_node = req.best_match_node = queue.tree_cache.root_node
    return resumed


def before_decode_step(resident: Resident, batch: Any, selected_indices: Any) -> None:
    """ScheduleBatch.check_decode_mem decides whether running requests must be retracted: idle sessions go first."""
    short = batch.new_tokens_required_next_decode(selected_indices) - resident.tree.free_tokens()
    if short > 0:
        resident.make_room(short)


def retracted(resident: Resident, result: tuple[list[Any], float, list[Any]]) -> None:
    """ScheduleBatch.retract_decode. What could not even be retracted is aborted there, without another word."""
    away, _, lost = result
    resident.retracted([*away, *lost])
    for req in lost:
        resident.ended(req, keep=False)


def _make_room(resident: Resident, short: int) -> None:
    if short > 0 and resident.reclaimable_tokens() >= short:
        resident.make_room(short)
