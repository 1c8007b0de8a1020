"""A unified worker of a data-parallel cluster: prompts and answers on one GPU, a radix cache between them."""

from __future__ import annotations

from collections.abc import Iterator

from apd_replay.sim.clock import Clock
from apd_replay.sim.cost import Cost
from apd_replay.sim.job import Job, Stage
from apd_replay.sim.loglines import WorkerLog
from apd_replay.sim.prefixes import PrefixCache, SharedHeads
from apd_replay.sim.worker import Client, Worker


class UnifiedWorker(Worker):
    """`used` holds the cache too; SGLang's `#token` leaves it out."""

    __slots__ = ("cache",)

    def __init__(self, clock: Clock, cost: Cost, log: WorkerLog, client: Client, pool_tokens: int, *, retraction: bool, heads: SharedHeads) -> None:
        super().__init__(clock, cost, log, client, pool_tokens, retraction=retraction)
        self.cache = PrefixCache(heads)

    def submit(self, job: Job) -> None:
        if self.refused(job):
            return
        job.stage = Stage.WAITING
        self.waiting.append(job)
        self.poke()

    def limit(self, session: str, history: int) -> None:
        """The session's next prompt repeats only `history` tokens."""
        self.used -= self.cache.limit(session, history)

    def _admit_prompt(self, job: Job) -> bool:
        """The prompt's head is looked up when its turn has come, so that it finds what ran before it."""
        if job.stage is Stage.PREFILL:
            return True
        if not job.prefix:
            job.prefix, job.shared_head = self.cache.match(job.request)
            if job.prefix > job.shared_head:
                job.held = job.prefix - job.shared_head
                self.used += job.held - self.cache.take(job.session)
            job.cached = job.computed = job.prefix
        if super()._admit_prompt(job):
            return True
        if job.held:  # not yet: nobody keeps the prompt's head for it meanwhile
            self.used += self.cache.insert(job.request, job.prefix) - job.held
            job.held = job.prefix = job.computed = job.shared_head = 0
        return False

    def reclaimable(self) -> int:
        return self.cache.size

    def reclaim(self, tokens: int) -> int:
        freed = self.cache.evict(tokens)
        self.used -= freed
        return freed

    def _room_wanted(self) -> int:
        """Evict once for the whole way to the next change instead of step by step."""
        return self.batch.n * (self.batch.next_end() - self.batch.step)

    def release(self, job: Job) -> None:
        self.used += self.cache.insert(job.request, job.held + job.shared_head) - job.held
        job.held = 0

    def set_aside(self, job: Job) -> None:
        """Back to the queue: prompt and answer so far are computed again."""
        job.stage = Stage.WAITING
        job.prefix = job.computed = job.shared_head = 0
        self.waiting.append(job)

    def evictable_in_log(self) -> int:
        return self.cache.size

    def decode_line(self) -> tuple[str, str, str]:
        return (f"Decode batch, #running-req: {self.batch.n}, #token: ", ", cuda graph: True, gen throughput (token/s): ", f", #queue-req: {len(self.waiting)}")

    def parts(self) -> Iterator[int]:
        yield from super().parts()
        yield self.cache.size
