"""What decode and unified workers have in common: a KV pool, a batch that decodes, and prompts computed between its steps.

A scheduler's loop turns between two steps. `poke` says that there is something new; the loop sees it at the next boundary. Between
boundaries nothing happens, so the worker sleeps until the first of: a request finishes, the pool is full, something new.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from apd_replay.sim import loglines
from apd_replay.sim.batch import Batch
from apd_replay.sim.clock import Clock
from apd_replay.sim.cost import Cost
from apd_replay.sim.job import Job, Stage
from apd_replay.sim.loglines import WorkerLog

LOG_INTERVAL = 40  # decode steps between two `Decode batch` lines
CLIP_TOKENS = 4096  # SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION: no answer counts for more when room is made
NEW_TOKEN_RATIO = 0.7  # share of running answers that a new prompt leaves room for: where SGLang starts; that it then decays is not modelled
RETRACT_STEPS = 20  # a retraction makes room for so many steps (SGLANG_RETRACT_DECODE_STEPS)


class Client(Protocol):
    """Who hears what became of a job."""

    def first_token(self, job: Job) -> None: ...

    def finished(self, job: Job) -> None: ...

    def failed(self, job: Job, kind: str, message: str) -> None: ...


class Worker:
    """`used` counts every token of the pool that is taken; `held` is the part of it that no eviction can free."""

    __slots__ = ("_acting", "_least_s", "_line_at", "_line_t", "_line_tokens", "_news", "_retraction", "_wake_id", "_wake_step", "batch", "client", "clock", "cost",
                 "log", "made", "pool", "prefilling", "used", "waiting")  # fmt: skip

    def __init__(self, clock: Clock, cost: Cost, log: WorkerLog, client: Client, pool_tokens: int, *, retraction: bool) -> None:
        self.clock, self.cost, self.log, self.client = clock, cost, log, client
        self.pool, self.used = pool_tokens, 0
        self.batch = Batch(cost)
        self.waiting: deque[Job] = deque()  # prompts to compute here
        self.prefilling: list[Job] = []
        self.made = 0  # answer tokens
        self._retraction = retraction
        self._least_s = 0.0  # that a prefill batch takes here
        self._acting = self._news = False
        self._wake_id, self._wake_step = 0, 0  # the wake that counts, and the step it stands for
        self._line_at, self._line_t, self._line_tokens = LOG_INTERVAL, 0.0, 0

    # what kinds of worker differ in -----------------------------------------------------------------------------------

    def reclaimable(self) -> int:
        """Tokens that `reclaim` could free."""
        raise NotImplementedError

    def reclaim(self, tokens: int) -> int:
        """Evict until `tokens` are free more than before, or nothing is left to evict; what was freed."""
        raise NotImplementedError

    def release(self, job: Job) -> None:
        """A finished job's `held` tokens go wherever they are kept."""
        raise NotImplementedError

    def serve_queues(self, now: float) -> None:
        """What the scheduler does between two steps before it looks at prompts."""

    def more_to_serve(self) -> bool:
        """`serve_queues` has more to do at the next boundary, without anything new."""
        return False

    def set_aside(self, job: Job) -> None:
        """Where a retracted request waits; it holds no tokens any more."""
        raise NotImplementedError

    def decode_line(self) -> tuple[str, str, str]:
        """A `Decode batch` line but for three figures: up to #token, from token usage to the throughput, and the rest."""
        raise NotImplementedError

    # the scheduler's loop ---------------------------------------------------------------------------------------------

    def poke(self) -> None:
        """There is something new to look at."""
        if self._acting:
            self._news = True
        elif self.prefilling:
            pass  # the end of the prefill batch will look
        elif self.batch.n:
            self.settle()
            self._wake_by(self.batch.step + (self.clock.now > self.batch.t0))
        else:
            self._loop()

    def settle(self) -> None:
        """Bring the books up to the last boundary."""
        if self.batch.n and not self.prefilling:
            k = self.batch.steps_by(self.clock.now)
            if k:
                self._step(k, None)

    def boundary(self) -> float:
        """When the scheduler's loop next turns, books settled."""
        batch, now = self.batch, self.clock.now
        if self.prefilling or batch.t0 > now or not batch.n:
            return max(batch.t0, now)
        return batch.t0 if batch.t0 == now else batch.t0 + batch.s0

    def _step(self, k: int, t: float | None) -> None:
        batch = self.batch
        if self.log.on and batch.step + k >= self._line_at:
            self._decode_lines(k)
        made = batch.n * k
        self.made += made
        self.used += made
        batch.advance(k, t)

    def _decode_lines(self, k: int) -> None:
        """The `Decode batch` lines of the next `k` steps; only the tokens and the rate differ among them."""
        batch, log, pool = self.batch, self.log, self.pool
        n, done, end = batch.n, batch.step, batch.step + k
        base = self.used - self.evictable_in_log()
        head, middle, tail = self.decode_line()
        last_t, last_made, at = self._line_t, self._line_tokens, self._line_at
        time_of, stamp, lines = batch.time_of, log.stamp, []
        while at <= end:
            steps = at - done
            t, made, token = time_of(steps), self.made + n * steps, base + n * steps
            rate = (made - last_made) / (t - last_t) if t > last_t else 0.0
            lines.append(f"{stamp(t)}{head}{token}, token usage: {token / pool:.2f}{middle}{rate:.2f}{tail}\n")
            last_t, last_made = t, made
            at += LOG_INTERVAL
        log.extend(lines)
        self._line_t, self._line_tokens, self._line_at = last_t, last_made, at

    def evictable_in_log(self) -> int:
        """Tokens of `used` that SGLang's `#token` leaves out."""
        return 0

    def _wake_by(self, step: int) -> None:
        step = min(step, self.batch.next_end())
        if step < self._wake_step:
            self._wake_at(step)

    def _wake_at(self, step: int) -> None:
        self._wake_step = step
        self._wake_id += 1
        self.clock.at(self.batch.time_of(step - self.batch.step), self._wake, self._wake_id)

    def _wake(self, wake_id: int) -> None:
        if wake_id == self._wake_id:
            k = self._wake_step - self.batch.step
            if k > 0:
                self._step(k, self.clock.now)
            self._loop()

    def _sleep(self) -> None:
        self._wake_id += 1  # whatever was to come is off
        self._wake_step = 1 << 62

    def _loop(self) -> None:
        """One boundary: finish, serve queues, compute prompts, make room, and sleep until the next one that matters."""
        now, batch = self.clock.now, self.batch
        self._acting = True
        while True:
            self._news = False
            while (job := batch.pop_ended()) is not None:
                self._finish(job)
            self.serve_queues(now)
            if self.waiting and self._start_prefill(now):
                break
            if self._news and not batch.n:
                continue
            if batch.n:
                if self._make_room(now) and batch.n:
                    self._plan_next()
                else:
                    continue
            else:
                self._sleep()
            break
        self._acting = False

    def _plan_next(self) -> None:
        batch = self.batch
        step = batch.next_end()
        if self._news or self.more_to_serve():
            step = batch.step + 1
        elif self._retraction:
            step = min(step, batch.step + max(1, (self.pool - self.used) // batch.n))
        self._wake_at(step)

    # prompts computed here --------------------------------------------------------------------------------------------

    def _start_prefill(self, now: float) -> bool:
        """Fill one prefill batch from the head of the queue: whole prompts as far as they fit, and a part of the last one."""
        budget, seconds, waiting = self.cost.chunk_tokens, self.cost.chunk_s, self.waiting
        taken: list[Job] = []
        new_tokens = cached = 0
        while waiting and budget and self.batch.n + len(taken) < self.cost.max_running:
            job = waiting[0]
            if not self._admit_prompt(job):
                break
            part = min(budget, job.input + job.generated - job.computed)
            seconds += self.cost.prompt_s(part, job.computed) * job.noise
            if job.computed == job.prefix:
                cached += job.prefix
            job.chunk = part
            new_tokens += part
            budget -= part
            taken.append(job)
            job.stage = Stage.PREFILL
            waiting.popleft()
        if not taken:
            return False
        self.prefilling = taken
        seconds = max(seconds, self._least_s)
        if self.log.on:
            self.log.write(now, self.prefill_line(len(taken), new_tokens, cached, new_tokens / seconds))
        self._sleep()
        self.batch.t0 = max(now, self.batch.t0) + seconds  # an admission call may have taken the first moments
        self.clock.at(self.batch.t0, self._prefilled)
        return True

    def _admit_prompt(self, job: Job) -> bool:
        """Room for all of the prompt that is still to be computed: taken once, before its first part."""
        if job.stage is Stage.PREFILL:
            return True
        need = job.input + job.generated - job.shared_head - job.held
        short = need + self._answer_reserve(job) - (self.pool - self.used)
        if short > 0 and (self.reclaimable() < short or self.reclaim(short) < short):
            return False
        job.held += need
        self.used += need
        return True

    def _answer_reserve(self, job: Job) -> int:
        """Tokens that must be free beyond a prompt's own: its answer, and most of what the running requests may still need."""
        done = self.batch.step
        running = sum(min(j.finish_step - done, CLIP_TOKENS) for j in self.batch.jobs)
        return min(job.output - job.generated, CLIP_TOKENS) + int(NEW_TOKEN_RATIO * running)

    def prefill_line(self, count: int, new_tokens: int, cached: int, throughput: float) -> str:
        taken = self.used - self.evictable_in_log()
        pending = sum(job.input - job.computed for job in self.waiting)
        return (f"Prefill batch, #new-seq: {count}, #new-token: {new_tokens}, #cached-token: {cached}, token usage: {taken / self.pool:.2f}, "
                f"#running-req: {self.batch.n}, #queue-req: {len(self.waiting)}, #pending-token: {pending}, cuda graph: False, "
                f"input throughput (token/s): {throughput:.2f}")  # fmt: skip

    def _prefilled(self, _: None) -> None:
        """The prefill batch is done: whole prompts join the decoding, a part goes back to the head of the queue."""
        done, self.prefilling = self.prefilling, []
        self.batch.t0 = self.clock.now
        self._acting = True
        for job in done:
            job.computed += job.chunk
            if job.stage is Stage.GONE:
                self.used -= job.held
                job.held = 0
            elif job.computed < job.input + job.generated:
                self.waiting.appendleft(job)
            else:
                self.complete_prompt(job)
        self._loop()

    def refused(self, job: Job) -> bool:
        """A request that the whole pool could not hold is answered at once."""
        needed = job.input + job.output
        if needed <= self.pool:
            return False
        message = loglines.too_long(job.rid, needed, self.pool)
        self.log.write(self.clock.now, message)
        job.stage = Stage.GONE
        self.client.failed(job, "http_4xx", message)
        return True

    def complete_prompt(self, job: Job) -> None:
        """The prompt's KV is complete, which yields an answer token; the rest takes a step each."""
        job.generated += 1
        self.made += 1
        if job.generated == 1:
            self.client.first_token(job)
        self.start_decoding(job)

    def start_decoding(self, job: Job) -> None:
        batch = self.batch
        job.stage = Stage.RUNNING
        if job.output <= job.generated:
            self._end(job)
            return
        if not batch.n and batch.t0 < self.clock.now:
            batch.t0 = self.clock.now
        batch.join(job)

    def _finish(self, job: Job) -> None:
        self.batch.leave(job)
        self._end(job)

    def _end(self, job: Job) -> None:
        job.stage = Stage.GONE
        self.release(job)
        self.client.finished(job)

    # memory -----------------------------------------------------------------------------------------------------------

    def _make_room(self, now: float) -> bool:
        """Room for one step: evict, then retract. False: the batch has changed, look again."""
        batch = self.batch
        free = self.pool - self.used
        if free >= batch.n or not self._retraction:
            return True
        if self.reclaim(self._room_wanted() - free) + free >= batch.n:
            return True
        self._retract(now)
        return False

    def _room_wanted(self) -> int:
        return self.batch.n

    def _retract(self, now: float) -> None:
        """Fewest answer tokens first, the longest prompt among equals; at least one goes, at least one stays (SGLANG.md 3.6)."""
        batch = self.batch
        before, count = self.used, 0
        order = sorted(batch.jobs, key=lambda job: (job.generated + batch.step - job.joined_step, -job.input, job.rid))
        for job in order[:-1]:
            if count and self.pool - self.used >= RETRACT_STEPS * batch.n:
                break
            batch.leave(job)
            self.used -= job.held
            job.held = 0
            job.retractions += 1
            self.set_aside(job)
            count += 1
        if count:
            self.log.write(now, loglines.retracted(count, before - self.used))
        if batch.n == 1 and self.pool - self.used < 1:
            job = order[-1]
            batch.leave(job)
            self.used -= job.held
            job.held = 0
            job.stage = Stage.GONE
            self.log.write(now, loglines.out_of_memory(job.rid))
            self.client.failed(job, "out_of_memory", loglines.OUT_OF_MEMORY_CLIENT)

    def drop(self, job: Job) -> None:
        """The client has given the job up: free what it holds."""
        stage, job.stage = job.stage, Stage.GONE
        if stage is Stage.WAITING:
            self.waiting.remove(job)
        elif stage is Stage.RUNNING:
            self.settle()
            self.batch.leave(job)
        if stage is not Stage.PREFILL or job in self.waiting:
            if stage is Stage.PREFILL:
                self.waiting.remove(job)
            self.used -= job.held
            job.held = 0
        self._after_drop()

    def _after_drop(self) -> None:
        if self.batch.n and not self.prefilling and not self._acting:
            self._wake_step = 1 << 62  # the batch steps at another pace now
        self.poke()

    def queued(self) -> int:
        return len(self.waiting)

    def parts(self) -> Iterator[int]:
        """What makes up `used`, for the books' check."""
        yield from (job.held + self.batch.step - job.joined_step for job in self.batch.jobs)
        yield from (job.held for job in self.waiting)
        yield from (job.held for job in self.prefilling)
