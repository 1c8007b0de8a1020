"""Direct append: a decode-mode worker prefills the turn of a resident session itself, on the prefix it kept, and goes on decoding.

A request marked `bootstrap_host: "direct"` waits in SGLang's ordinary waiting queue instead of the preallocation queue, and is
scheduled by the code that a unified worker uses. Told apart from requests whose KV came from a P by the mark and by having
neither an answer nor KV yet: a retracted direct turn comes back the way of every retracted request.

The functions are hooks (hooks.py): the first argument of each is SGLang's own function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from apd_replay.sglang_plugin.resident import Resident, session_of

MARK = "direct"  # the same word as replay/generate.py's
LONGEST_ANSWER_TOKENS = 4096  # SGLang's own clip of what a request may still generate, when it plans memory


def has_kv(req: Any) -> bool:
    """Does the request own a row of the pool? 0.5.21 keeps that in `req.kv`, 0.5.15 on the request."""
    return bool(req.kv.holds_kv) if hasattr(req, "kv") else req.req_pool_idx is not None


def is_direct(req: Any) -> bool:
    return req.bootstrap_host == MARK and not req.output_ids and not has_kv(req)


@contextmanager
def as_unified(scheduler: Any) -> Iterator[None]:
    """SGLang's code for a worker that prefills and decodes: what it does in that mode is what a direct turn needs."""
    from sglang.srt.disaggregation.utils import DisaggregationMode

    mode, scheduler.disaggregation_mode = scheduler.disaggregation_mode, DisaggregationMode.NULL
    try:
        yield
    finally:
        scheduler.disaggregation_mode = mode


def take_in(resident: Resident, original: Callable[..., None], scheduler: Any, req: Any, is_retracted: bool = False) -> None:
    """Scheduler._add_request_to_queue.

    With overlapped scheduling a direct turn may be retracted before its first token is known, and as the one with the fewest tokens it
    even goes first. The stock way back starts from a token, so such a turn waits here again and computes its append anew.
    """
    if is_retracted:
        if is_direct(req):
            _drop_backup(scheduler, req)
            with as_unified(scheduler):
                original(scheduler, req, is_retracted)
        else:
            original(scheduler, req, is_retracted)
        return
    direct = is_direct(req)
    resident.arrived(req, direct=direct)
    if direct:
        with as_unified(scheduler):
            original(scheduler, req)
        queued = any(waiting is req for waiting in scheduler.waiting_queue)
    else:
        original(scheduler, req)
        queued = not req.finished()
    if not queued:
        resident.ended(req, keep=False)


def _drop_backup(scheduler: Any, req: Any) -> None:
    """The copy of the KV that SGLang made when it retracted the request."""
    if not hasattr(req, "kv"):  # 0.5.15
        del req.kv_cache_cpu
        return
    from sglang.srt.mem_cache.common import discard_kv_cache_backup
    from sglang.srt.runtime_context import get_disagg

    discard_kv_cache_backup(req, scheduler.tree_cache, get_disagg().disaggregation_decode_retraction_backup)


def next_batch(resident: Resident, original: Callable[..., Any], scheduler: Any, running_batch: Any = None) -> Any:
    """Scheduler.get_next_disagg_decode_batch_to_run: () -> batch on 0.5.15, (running_batch) -> plan from 0.5.17 on.

    The stock function decodes and merges what P sent, and asserts that no prefill is under way. Where one is, or is due: first what P sent,
    as the stock function does; then SGLang's unified scheduling over the direct turns alone, which merges the last appends, keeps the
    books of a chunked one, and builds either the next append batch or a decode step.
    """
    resident.once_a_loop()
    direct = [req for req in scheduler.waiting_queue if is_direct(req)]
    last = scheduler.last_batch
    handed = running_batch is not None  # the running batch is handed in and back, or stands in the scheduler
    if not direct and scheduler.chunked_req is None and not (last is not None and last.forward_mode.is_extend()):
        return original(scheduler, running_batch) if handed else original(scheduler)
    scheduler.waiting_queue = [req for req in scheduler.waiting_queue if not is_direct(req)]
    running = _merge_what_prefill_sent(scheduler, running_batch if handed else scheduler.running_batch, handed)
    if direct:
        _make_room(resident, scheduler, direct[0], running)
    left, scheduler.waiting_queue = scheduler.waiting_queue, direct
    try:
        plan = scheduler.get_next_batch_to_run(running, last) if handed else scheduler.get_next_batch_to_run()
    finally:
        waiting, scheduler.waiting_queue = scheduler.waiting_queue, left + scheduler.waiting_queue
    batch = plan.batch_to_run if handed else plan
    if batch is not None and batch.forward_mode.is_extend():
        for req, prefix, new in zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True):
            resident.scheduled(req, prefix_tokens=int(prefix), new_tokens=int(new), chunk=req is scheduler.chunked_req)
    stays = plan.running_batch if handed else scheduler.running_batch
    _settle(resident, scheduler, direct, waiting, stays, idle=batch is None and last is None)
    return plan


def _merge_what_prefill_sent(scheduler: Any, running: Any, handed: bool) -> Any:
    """The running batch with the requests whose KV has arrived from a P."""
    arrived = scheduler.get_new_prebuilt_batch(running) if handed else scheduler.get_new_prebuilt_batch()
    if not arrived:
        return running
    scheduler.batch_result_processor.process_batch_result_prebuilt(arrived)
    arrived.filter_batch()
    if arrived.is_empty():
        return running
    if running.is_empty():
        running = arrived
    else:
        running.merge_batch(arrived)
    if not handed:
        scheduler.running_batch = running
    return running


def _make_room(resident: Resident, scheduler: Any, req: Any, running_batch: Any) -> None:
    """Idle sessions make way for the first waiting turn, by the estimate that SGLang's prefill planner uses: what the turn adds, its
    answer, and what running requests are expected to need."""
    session = resident.session_of_request(req)
    kept = min(session.tokens if session else 0, len(req.origin_input_ids) - 1)
    ratio = scheduler.new_token_ratio_tracker.current
    coming = sum(min(r.sampling_params.max_new_tokens - len(r.output_ids), LONGEST_ANSWER_TOKENS) * ratio for r in running_batch.reqs)
    need = len(req.origin_input_ids) - kept + min(req.sampling_params.max_new_tokens, LONGEST_ANSWER_TOKENS) + int(coming) + 1
    pages = (2 + len(running_batch.reqs)) * resident.tree.page_size
    short = need + pages - resident.tree.free_tokens()
    if short > 0 and resident.make_room(short, but=session):
        running_batch.batch_is_full = False  # SGLang remembers that the pool was full until a request ends


def _settle(resident: Resident, scheduler: Any, direct: list[Any], waiting: list[Any], running_batch: Any, *, idle: bool) -> None:
    """Turns that SGLang dropped (its waiting timeout), and turns that could wait for ever."""
    for req in direct:
        if not has_kv(req) and not req.finished() and not any(req is other for other in waiting):
            resident.ended(req, keep=False)
    if idle and waiting and scheduler.chunked_req is None and not scheduler.disagg_decode_transfer_queue.queue:
        first = resident.session_of_request(waiting[0])
        if resident.make_room(resident.tree.total_tokens, but=first) or resident.free_a_waiting_slot(but=first):
            running_batch.batch_is_full = False


def abort(resident: Resident, original: Callable[..., None], scheduler: Any, recv_req: Any) -> None:
    """Scheduler.abort_request. In decode mode it takes for granted that every queued request owns KV, and would bring the worker down
    over a queued direct turn; and it forgets retracted requests without releasing anything."""

    def meant(req: Any) -> bool:
        return bool(recv_req.abort_all or req.rid.startswith(recv_req.rid))

    leaving = [req for req in scheduler.waiting_queue if is_direct(req) and meant(req)]
    retracted = [req for req in scheduler.disagg_decode_prealloc_queue.retracted_queue if meant(req)]
    if leaving:
        others = [req for req in scheduler.waiting_queue if not any(req is gone for gone in leaving)]
        scheduler.waiting_queue = list(leaving)  # SGLang pops from it
        with as_unified(scheduler):
            original(scheduler, recv_req)
        scheduler.waiting_queue = others
    original(scheduler, recv_req)
    for req in (*leaving, *retracted):
        resident.events.record("abort", session=session_of(req), rid=req.rid)
        resident.ended(req, keep=False)
