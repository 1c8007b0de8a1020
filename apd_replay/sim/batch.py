"""The requests that a worker decodes together, stepped in closed form.

Between two changes of the batch a step of n requests takes base(n) + context_s x (context tokens), and the context grows by n a step.
So the time of k steps is k s0 + g k (k - 1) / 2, and nothing has to be done for a single step or token.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import sqrt

from apd_replay.sim.cost import Cost
from apd_replay.sim.job import Job


class Batch:
    """`step` steps were done by `t0`. `context` is the sum of prompt and answer tokens of all `jobs` then."""

    __slots__ = ("_base", "_context_s", "_ends", "_joins", "_noise", "context", "jobs", "n", "s0", "step", "t0", "tempo")

    def __init__(self, cost: Cost) -> None:
        self._base, self._context_s = cost.step_s, cost.context_s
        self.t0 = 0.0
        self.step = 0
        self.n = 0
        self.context = 0
        self.jobs: dict[Job, None] = {}
        self._noise = 0.0
        self._joins = 0
        self._ends: list[tuple[int, int, Job]] = []
        self.s0 = self.tempo = 0.0  # time of the next step; what each step is longer than the one before

    def join(self, job: Job) -> None:
        """`job.generated` of `job.output` answer tokens are there; the rest takes one step each."""
        job.joined_step = self.step
        job.finish_step = self.step + job.output - job.generated
        self._joins += 1
        heappush(self._ends, (job.finish_step, self._joins, job))
        self.jobs[job] = None
        self._count(1, job.noise, job.input + job.generated)

    def leave(self, job: Job) -> None:
        """Bring `job.generated` and `job.held` up to date and take the job out."""
        done = self.step - job.joined_step
        job.generated += done
        job.held += done
        del self.jobs[job]
        if job.finish_step >= 0:  # before its time: its end must not come up again
            self._ends = [end for end in self._ends if end[2] is not job]
            heapify(self._ends)
        self._count(-1, -job.noise, -(job.input + job.generated))

    def _count(self, n: int, noise: float, context: int) -> None:
        self.n += n
        self._noise = self._noise + noise if self.n else 0.0
        self.context += context
        self._pace()

    def _pace(self) -> None:
        n = self.n
        if n:
            base = self._base[n] if n < len(self._base) else self._base[-1]
            self.tempo = self._context_s * n
            self.s0 = base * self._noise / n + self._context_s * self.context

    def next_end(self) -> int:
        """The step that finishes the next request."""
        return self._ends[0][0]

    def pop_ended(self) -> Job | None:
        """The next request that is finished by now, still to be taken out."""
        ends = self._ends
        if not ends or ends[0][0] > self.step:
            return None
        job = heappop(ends)[2]
        job.finish_step = -1
        return job

    def time_of(self, k: int) -> float:
        """When `k` more steps are done."""
        return self.t0 + k * self.s0 + self.tempo * (0.5 * k * (k - 1))

    def steps_by(self, t: float) -> int:
        """Whole steps done between `t0` and `t`."""
        passed = t - self.t0
        if passed < self.s0 or not self.n:
            return 0
        a = self.s0 - 0.5 * self.tempo
        k = int(2.0 * passed / (a + sqrt(a * a + 2.0 * self.tempo * passed)))
        while self.time_of(k + 1) <= t:  # the root is exact but for rounding
            k += 1
        while k and self.time_of(k) > t:
            k -= 1
        return k

    def advance(self, k: int, t: float | None = None) -> None:
        """Do `k` steps; `t`: their end, where it is known already."""
        self.t0 = self.time_of(k) if t is None else t
        self.step += k
        self.context += self.n * k
        self.s0 += self.tempo * k
