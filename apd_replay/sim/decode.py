"""A decode worker (D): session slots, the queues of a PD transfer in SGLang's order (SGLANG.md 3.5), and direct appends.

Order of a turn through P: prealloc (first in, first out; stops at the first that does not fit) -> transfer -> arrived -> decoding. While a
retracted request waits to come back, nothing is preallocated and arrived KV is not even picked up. A resident session keeps its KV in a
slot between turns; an idle slot may be evicted, least recently used first, one in flight never. The slots, the admission call and
the direct append are the design under test: no stock SGLang has them (docs/simulator.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from apd_replay.replay import eviction
from apd_replay.replay.core import AdmissionAnswer, Request
from apd_replay.replay.hints import DrainMeter, Pressure
from apd_replay.sim import loglines
from apd_replay.sim.clock import Clock
from apd_replay.sim.cost import Cost
from apd_replay.sim.job import Job, Stage
from apd_replay.sim.loglines import WorkerLog
from apd_replay.sim.slots import Scattered, Together
from apd_replay.sim.worker import CLIP_TOKENS, Client, Worker

RESERVED_TOKENS = 512  # SGLang's num-reserved-decode-tokens: kept free for each request under way
SNAPSHOT_STEPS = 15  # SGLang's load-snapshot-publish-interval, decode steps

ADMISSION_EXPIRES_S = 10.0  # the plugin's default: a commit keeps room for a turn so long

Hint = Callable[[Pressure], float]  # milliseconds
Answered = Callable[[AdmissionAnswer], None]


@dataclass(frozen=True, slots=True)
class Design:
    """What the design under test adds to a D. `admission`: `coupled`, `snapshot` or `commit`; `eviction`: `idle_lru` or `tiered`."""

    resident: bool
    admission: str
    eviction: str
    admission_cost: bool
    output_reserve_tokens: int
    hint: Hint


@dataclass(slots=True)
class Ask:
    """An admission call waiting for the scheduler's loop."""

    request: Request
    answered: Answered


class DecodeWorker(Worker):
    """`idle`: session -> KV tokens kept for it, least recently used first. `committed`: session -> (that, tokens set aside by an admission).
    `direct_turns`: session -> turns appended since its KV came."""

    __slots__ = ("_bootstrapped", "_drained", "arrived", "asks", "committed", "design", "direct_turns", "idle", "opened", "prealloc", "retracted", "slots",
                 "transfer", "transfer_tokens")  # fmt: skip

    def __init__(self, clock: Clock, cost: Cost, log: WorkerLog, client: Client, pool_tokens: int, *, retraction: bool, design: Design,
                 bootstrapped: Callable[[Job, float], None]) -> None:
        super().__init__(clock, cost, log, client, pool_tokens, retraction=retraction)
        self.design = design
        self._least_s = cost.append_s
        self.slots = Scattered(pool_tokens) if cost.run_s else Together()
        self._bootstrapped = bootstrapped
        self.prealloc: deque[Job] = deque()
        self.transfer: dict[Job, None] = {}
        self.transfer_tokens = 0
        self.arrived: deque[Job] = deque()
        self.retracted: deque[Job] = deque()
        self.idle: dict[str, int] = {}
        self.committed: dict[str, tuple[int, int]] = {}
        self.direct_turns: dict[str, int] = {}
        self._drained = DrainMeter()
        self.opened: set[str] = set()
        self.asks: deque[Ask] = deque()

    # a turn through P -------------------------------------------------------------------------------------------------

    def arrive(self, job: Job) -> None:
        """A request that a P will compute. What its session had here makes way for the KV that will come."""
        if self.refused(job):
            return
        self.settle()
        self._open(job.session)
        self._free_slot(job.session)
        job.stage = Stage.PREALLOC
        self.prealloc.append(job)
        self._preallocate()
        self._after_change()

    def _preallocate(self) -> None:
        queue = self.prealloc
        while queue and not self.retracted:
            job = queue[0]
            short = self._room_for(job) - self._budget()
            if short > 0 and (self.reclaimable() < short or self.reclaim(short) < short):
                return
            queue.popleft()
            job.held = job.input
            self.used += job.held
            job.runs = self.slots.take(job.session, job.input)
            self.transfer_tokens += job.input
            self.transfer[job] = None
            job.stage = Stage.TRANSFER
            self._bootstrapped(job, self.boundary())

    def _room_for(self, job: Job) -> int:
        return job.input + max(RESERVED_TOKENS, min(job.output, CLIP_TOKENS) - self.batch.context)

    def _budget(self) -> int:
        """Tokens that may be preallocated: free, less a reserve for all under way, or what the longest running request may still need."""
        batch = self.batch
        reserve = RESERVED_TOKENS * (batch.n + len(self.transfer) + len(self.arrived) + len(self.waiting) + len(self.prefilling))
        for job in self.waiting:  # an admitted append keeps its claim: without this, prompts through P could take what it waits for, for ever
            reserve += job.input - job.held
        if batch.n:
            longest = max(job.input + (job.output if job.output < CLIP_TOKENS else CLIP_TOKENS) for job in batch.jobs)
            reserve = max(reserve, longest - batch.context)
        return self.pool - self.used - reserve

    def transferred(self, job: Job) -> None:
        """The KV of a request is complete."""
        del self.transfer[job]
        self.transfer_tokens -= job.input
        job.stage = Stage.ARRIVED
        self.arrived.append(job)
        self.poke()

    # the design under test: admission and direct append ---------------------------------------------------------------

    def ask(self, request: Request, answered: Answered) -> None:
        """Can the D take this turn as an append to what it keeps of the session? `commit` (remedy F4) first looks at the snapshot, as
        `snapshot` does, and disturbs the scheduler only where that says yes, to set the room aside."""
        if self.design.admission != "coupled":
            answer = self._probe(request)
            if self.design.admission == "snapshot" or not answer.can_admit:
                self.clock.at(self.clock.now + self.cost.rpc_s, answered, answer)
                return
        self.asks.append(Ask(request, answered))
        self.poke()

    def _probe(self, request: Request) -> AdmissionAnswer:
        """From what the D last published: no step is waited for, nothing is evicted or kept."""
        self.settle()
        stale = self.batch.n * (self.batch.step % SNAPSHOT_STEPS)
        others = sum(self.idle.values()) - self.idle.get(request.session, 0)
        need = self._append_need(request)
        free = self.pool - self.used + stale
        return self._answer(request, need is not None and need <= free + others, need, 0)

    def _answer_one(self, now: float) -> None:
        """One call a turn of the loop: SGLang's communicator has one in flight per type (SGLANG.md 3.9)."""
        ask = self.asks.popleft()
        need = self._append_need(ask.request)
        evicted, ok = 0, False
        if need is not None:
            session = ask.request.session
            slot = self.idle.pop(session)
            short = need - (self.pool - self.used)
            if short > 0 and (self.design.admission == "coupled" or self.reclaimable() >= short):
                evicted = self._evict(short)
            ok = need <= self.pool - self.used
            if ok and self.design.admission == "commit":
                self.committed[session] = (slot, need)
                self.used += need
                self.clock.at(now + ADMISSION_EXPIRES_S, self._expire, (session, slot, need))
            else:
                self.idle[session] = slot  # asked for: most recently used
        answer = self._answer(ask.request, ok, need, evicted)
        cost = self.cost.admission_s if self.design.admission_cost else 0.0
        self.batch.t0 = now + cost
        self.clock.at(now + cost + self.cost.rpc_s, ask.answered, answer)

    def _append_need(self, request: Request) -> int | None:
        """Tokens that the append needs beyond its slot; None: the session is not kept here."""
        slot = self.idle.get(request.session)
        if slot is None:
            return None
        return request.input_tokens - min(slot, request.history_tokens) + self.design.output_reserve_tokens

    def _expire(self, commit: tuple[str, int, int]) -> None:
        """The turn has not come in time: its room is free again, its slot stays."""
        session, slot, reserved = commit
        if self.committed.get(session) == (slot, reserved):
            self.settle()
            del self.committed[session]
            self.idle[session] = slot
            self.used -= reserved
            self.poke()

    def _answer(self, request: Request, ok: bool, need: int | None, evicted: int) -> AdmissionAnswer:
        depth, retracted = len(self.transfer), len(self.retracted)
        usage = self.used / self.pool
        whole = request.input_tokens + self.design.output_reserve_tokens  # what it takes to hold the session without evicting another
        short = 0 if ok else whole - self.idle.get(request.session, 0) - (self.pool - self.used)
        after = (self.used + (whole if need is None else need)) / self.pool
        pause = self.design.hint(Pressure(depth, retracted, after, short, self._drained.rate(self.clock.now)))
        return AdmissionAnswer(can_admit=ok, recommended_pause_ms=pause, queue_depth=depth, available_tokens=self.pool - self.used,
                               evicted_session_count=evicted, token_usage=usage, retracted_queue=retracted, prealloc_queue=len(self.prealloc))  # fmt: skip

    def append(self, job: Job) -> None:
        """A direct turn: its new tokens are computed here, between decode steps. A slot evicted since the admission: its history too."""
        self.settle()
        slot, reserved = self._take_slot(job.session)
        job.slot_lost = slot == 0
        self.direct_turns[job.session] = self.direct_turns.get(job.session, 0) + 1 if slot else 0
        kept = min(slot, job.request.history_tokens, job.input - 1)
        job.prefix = job.cached = job.computed = kept
        job.held = min(kept + reserved, job.input)
        self.used -= slot + reserved - job.held
        self._open(job.session)
        job.stage = Stage.WAITING
        self.waiting.append(job)
        self.poke()

    # slots ------------------------------------------------------------------------------------------------------------

    def _open(self, session: str) -> None:
        if self.design.resident and session not in self.opened:
            self.opened.add(session)
            self.log.write(self.clock.now, loglines.session_opened(session, len(self.opened)))

    def close(self, session: str) -> None:
        if session in self.opened:
            self.settle()
            self.opened.remove(session)
            self._drained.left(self.clock.now, self.idle.get(session, 0))
            self._free_slot(session)
            self.log.write(self.clock.now, loglines.session_closed(session, len(self.opened)))
            self.poke()

    def _take_slot(self, session: str) -> tuple[int, int]:
        """(tokens kept for the session, tokens set aside for its next turn); neither is kept any longer."""
        if session in self.committed:
            return self.committed.pop(session)
        return self.idle.pop(session, 0), 0

    def _free_slot(self, session: str) -> None:
        self.direct_turns.pop(session, None)
        self.slots.give(session)
        slot, reserved = self._take_slot(session)
        if slot:
            self.used -= slot + reserved
            self.log.write(self.clock.now, loglines.session_released(session, slot))

    def reclaimable(self) -> int:
        return sum(self.idle.values())

    def reclaim(self, tokens: int) -> int:
        before = self.used
        self._evict(tokens)
        return before - self.used

    def _evict(self, tokens: int) -> int:
        """Idle sessions out, in the order of replay/eviction.py, until `tokens` are freed or none is left; how many."""
        freed = count = 0
        for session in self._victims():
            if freed >= tokens:
                break
            freed += self.idle.pop(session)
            self.slots.give(session)
            self.direct_turns.pop(session, None)
            count += 1
        if count:
            self.used -= freed
            self.log.write(self.clock.now, loglines.trimmed(count, freed))
        return count

    def _victims(self) -> list[str]:
        """`idle` is in the order of last use."""
        used, turns = {session: float(k) for k, session in enumerate(self.idle)}, self.direct_turns
        return sorted(self.idle, key=lambda session: eviction.rank(self.design.eviction, turns.get(session, 0), used[session]))

    def release(self, job: Job) -> None:
        if self.design.resident and job.session in self.opened:
            self.idle[job.session] = job.held
        else:
            self.used -= job.held
            self.slots.give(job.session)
        job.held = 0

    # retraction -------------------------------------------------------------------------------------------------------

    def set_aside(self, job: Job) -> None:
        """The KV goes to the host; copying it is not charged."""
        job.stage = Stage.RETRACTED
        self.slots.give(job.session)
        self.retracted.append(job)

    def _resume_retracted(self) -> None:
        """First retracted, first back, once its tokens and the reserve fit."""
        while self.retracted:
            job = self.retracted[0]
            need = job.input + job.generated - 1
            short = need + RESERVED_TOKENS - (self.pool - self.used)
            if short > 0 and (self.reclaimable() < short or self.reclaim(short) < short):
                return
            self.retracted.popleft()
            job.held = need
            self.used += need
            self.slots.take(job.session, need)
            self.start_decoding(job)

    # what the loop does to slots and to a prefill batch ----------------------------------------------------------------

    def _step(self, k: int, t: float | None) -> None:
        super()._step(k, t)
        self.slots.step(self.batch.jobs, k)

    def _admit_prompt(self, job: Job) -> bool:
        if not super()._admit_prompt(job):
            return False
        self.slots.take(job.session, job.input + job.generated)
        return True

    # the loop's own part ----------------------------------------------------------------------------------------------

    def serve_queues(self, now: float) -> None:
        if self.asks:
            self._answer_one(now)
            while self.asks and not self.batch.n:  # an idle loop turns at once
                self._answer_one(now)
        if self.retracted:
            self._resume_retracted()
        if not self.retracted:
            while self.arrived and self.batch.n < self.cost.max_running:
                self.complete_prompt(self.arrived.popleft())
            if self.prealloc:
                self._preallocate()

    def more_to_serve(self) -> bool:
        return bool(self.asks)

    def drop(self, job: Job) -> None:
        stage = job.stage
        if stage is Stage.RETRACTED:
            job.stage = Stage.GONE
            self.retracted.remove(job)
            self.poke()
            return
        self.slots.give(job.session)
        if stage > Stage.ARRIVED:
            super().drop(job)
            return
        job.stage = Stage.GONE
        self.settle()
        if stage is Stage.PREALLOC:
            self.prealloc.remove(job)
        elif stage is Stage.TRANSFER:
            del self.transfer[job]
            self.transfer_tokens -= job.input
        else:
            self.arrived.remove(job)
        self.used -= job.held
        job.held = 0
        self.poke()

    def _after_change(self) -> None:
        """`used` has grown between two boundaries: the pool may be full earlier than planned."""
        batch = self.batch
        if batch.n and not self._acting and not self.prefilling and self._retraction:
            self._wake_by(batch.step + max(1, (self.pool - self.used) // batch.n))

    def queued(self) -> int:
        return len(self.waiting) + len(self.arrived)

    def decode_line(self) -> tuple[str, str, str]:
        return (f"Decode batch, #running-req: {self.batch.n}, #token: ",
                f", pre-allocated usage: {self.transfer_tokens / self.pool:.2f}, #prealloc-req: {len(self.prealloc)}, #transfer-req: {len(self.transfer)}, "
                f"#retracted-req: {len(self.retracted)}, cuda graph: True, gen throughput (token/s): ",
                f", #queue-req: {len(self.waiting) + len(self.arrived)}")  # fmt: skip

    def parts(self) -> Iterator[int]:
        yield from super().parts()
        yield from self.idle.values()
        yield from (slot + reserved for slot, reserved in self.committed.values())
        yield from (job.held for job in self.transfer)
        yield from (job.held for job in self.arrived)
