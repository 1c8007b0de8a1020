"""A prefill worker (P): bootstrap, chunked prefill first in first out, a radix cache, and the KV on its way to the D's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from apd_replay.sim import loglines
from apd_replay.sim.clock import Clock
from apd_replay.sim.cost import Cost
from apd_replay.sim.job import Job
from apd_replay.sim.link import Link, Peer
from apd_replay.sim.loglines import WorkerLog
from apd_replay.sim.prefixes import PrefixCache, SharedHeads


class Receiver(Protocol):
    """Who hears what became of a transfer."""

    def transferred(self, job: Job) -> None: ...

    def transfer_failed(self, job: Job, kind: str, reason: str) -> None: ...


class PrefillWorker:
    """`held` counts the pool's tokens in use by prompts that are computed or sent; `cache.size` the ones kept beyond that.

    `alive(job)` is false once the job has failed or its client has gone.
    """

    __slots__ = ("_alive", "_receiver", "bootstrapping", "cache", "clock", "computing", "cost", "held", "inflight", "latching", "link", "log", "nixl",
                 "peers", "pending", "pool", "queue")  # fmt: skip

    def __init__(self, clock: Clock, cost: Cost, log: WorkerLog, receiver: Receiver, link: Link, peers: Sequence[Peer], pool_tokens: int,
                 heads: SharedHeads, *, nixl: bool, alive: Callable[[Job], bool]) -> None:
        self.clock, self.cost, self.log, self.link, self.peers = clock, cost, log, link, peers
        self._receiver, self._alive = receiver, alive
        self.pool, self.held = pool_tokens, 0
        self.cache = PrefixCache(heads)
        self.nixl = nixl
        self.bootstrapping = 0
        self.inflight = 0
        self.pending = 0  # uncached tokens of the queue
        self.queue: deque[Job] = deque()
        self.computing: list[Job] = []

    def limit(self, session: str, history: int) -> None:
        """The session's next prompt repeats only `history` tokens."""
        self.cache.limit(session, history)

    def ready(self, job: Job) -> None:
        """D has made room for the job's KV: its prompt may be computed."""
        self.bootstrapping -= 1
        if self._alive(job):
            self.queue.append(job)
            self.pending += job.input
            if not self.computing:
                self._start()

    def _start(self) -> None:
        """One prefill batch: whole prompts from the head of the queue, and a part of the last one."""
        budget, seconds, taken = self.cost.chunk_tokens, self.cost.chunk_s, self.computing
        new_tokens = cached = 0
        queue = self.queue
        while queue and budget:
            job = queue[0]
            if not self._alive(job):
                queue.popleft()
                self.pending -= job.input - job.computed
                self._release(job)
                continue
            if not job.p_held and not self._begin(job):
                break
            part = min(budget, job.input - job.computed)
            seconds += self.cost.prompt_s(part, job.computed) * job.noise
            if job.computed == job.prefix:
                cached += job.prefix
            job.chunk = part
            new_tokens += part
            budget -= part
            queue.popleft()
            taken.append(job)
        if taken:
            self.pending -= new_tokens
            if self.log.on:
                self.log.write(self.clock.now, self._line(len(taken), new_tokens, cached, new_tokens / seconds))
            self.clock.at(self.clock.now + seconds, self._computed)

    def _begin(self, job: Job) -> bool:
        """Look the prompt up and take room for what is not kept. False: prompts under way must leave first."""
        prefix, head = self.cache.match(job.request)
        held = job.input - head
        over = self.held + held - self.pool  # the session's own tokens leave the cache for `held`
        if over > 0 and self.held:
            return False
        if prefix > head:
            self.cache.take(job.session)
        job.prefix = job.computed = job.cached = prefix
        job.shared_head, job.p_held = head, held
        self.pending -= prefix
        self.held += held
        over = self.held + self.cache.size - self.pool
        if over > 0:
            self.cache.evict(over)
        return True

    def _line(self, count: int, new_tokens: int, cached: int, throughput: float) -> str:
        return (f"Prefill batch, #new-seq: {count}, #new-token: {new_tokens}, #cached-token: {cached}, token usage: {self.held / self.pool:.2f}, "
                f"#running-req: 0, #queue-req: {len(self.queue)}, #pending-token: {self.pending}, #bootstrap-req: {self.bootstrapping}, "
                f"#inflight-req: {self.inflight}, cuda graph: False, input throughput (token/s): {throughput:.2f}")  # fmt: skip

    def _computed(self, _: None) -> None:
        """The batch is done: its KV goes to the transfer queues, an unfinished prompt back to the head of the queue."""
        done, self.computing = self.computing, []
        for job in done:
            job.computed += job.chunk
            if not self._alive(job):
                self._release(job)
                continue
            last = job.computed >= job.input
            # what P had cached travels with the first piece
            tokens = job.computed if job.computed - job.chunk == job.prefix else job.chunk
            piece = self.link.send(job.decode, tokens, self.clock.now, (job.runs - 1) * tokens / job.input)
            while self.link.recovered:
                self.log.write(self.clock.now, f"Session {self.peers[self.link.recovered.pop()[1]].session} recovered via probe; un-blacklisted")
            if piece.error is not None:
                self.inflight += 1
                self.clock.at(piece.end, self._latched if piece.latched else self._failed, (job, piece.error))
            elif last:
                self.inflight += 1
                self.clock.at(piece.end, self._sent, job)
            else:
                self.queue.appendleft(job)
        if self.queue:
            self._start()

    def _sent(self, job: Job) -> None:
        self.inflight -= 1
        self._release(job)
        if self._alive(job):
            self._receiver.transferred(job)
        if not self.computing:
            self._start()

    def _latched(self, job_and_error: tuple[Job, str]) -> None:
        self.log.write(self.clock.now, f"Session {self.peers[job_and_error[0].decode].session} failed.")
        self._failed(job_and_error)

    def _failed(self, job_and_error: tuple[Job, str]) -> None:
        job, error = job_and_error
        peer = self.peers[job.decode]
        self.inflight -= 1
        self._release(job)
        if self._alive(job):
            if self.nixl:
                reason = loglines.NIXL_SENDER
            else:
                reason = loglines.chunk_not_sent(job.room, peer.status) if error == "kv_transfer" else loglines.peer_dead(peer.session)
            self.log.write(self.clock.now, loglines.prefill_failed(job.rid, job.room, reason))
            self._receiver.transfer_failed(job, error, reason)
        if not self.computing:
            self._start()

    def _release(self, job: Job) -> None:
        """What was computed stays in the cache; the rest of the room is free again."""
        if job.p_held:
            self.held -= job.p_held
            job.p_held = 0
            self.cache.insert(job.request, min(job.computed, job.input))
            over = self.held + self.cache.size - self.pool
            if over > 0:
                self.cache.evict(over)
