"""Where in a D's pool a session's KV lies: how many runs of neighbouring slots a transfer is sent into.

SGLang (0.5.15, mem_cache/allocator) takes slots from the front of a free list, puts freed ones aside, and sorts both together once the front is too
short. Requests that decode together take theirs by turns, so that what one of them frees lies between what the others keep. A P sends each run of
neighbouring slots by itself, in every layer (group_concurrent_contiguous). Pages of one token only: with larger ones a run is hardly shorter than a page.
The P's own slots count as neighbours: it computes prompts in large chunks and decodes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from apd_replay.sim.job import Job

Places = npt.NDArray[np.int32]


class Together:
    """All KV of a prompt lies together: what runs cost is not known, or pages are large."""

    def take(self, session: str, tokens: int) -> int:
        """Bring what the session has to `tokens` slots; into how many runs the new ones fall."""
        return 1

    def step(self, jobs: Iterable[Job], steps: int) -> None:
        """Each of the jobs that decode together takes a slot a step."""

    def give(self, session: str) -> None:
        """All slots of the session are free."""


class Scattered(Together):
    def __init__(self, pool_tokens: int) -> None:
        self._front: Places = np.arange(pool_tokens, dtype=np.int32)
        self._aside: list[Places] = []
        self._taken: dict[str, list[Places]] = {}
        self._count: dict[str, int] = {}

    def take(self, session: str, tokens: int) -> int:
        more = tokens - self._count.get(session, 0)
        if more <= 0:
            return 1
        places = self._from_front(more)
        self._keep(session, places)
        return 1 + int(np.count_nonzero(np.diff(places) != 1))

    def step(self, jobs: Iterable[Job], steps: int) -> None:
        sessions = [job.session for job in jobs]
        places = self._from_front(len(sessions) * steps)
        for at, session in enumerate(sessions):
            self._keep(session, places[at :: len(sessions)])

    def give(self, session: str) -> None:
        self._aside += self._taken.pop(session, [])
        self._count.pop(session, None)

    def _from_front(self, tokens: int) -> Places:
        if tokens > len(self._front):
            self._front = np.sort(np.concatenate([self._front, *self._aside]))
            self._aside = []
        places, self._front = self._front[:tokens], self._front[tokens:]
        return places

    def _keep(self, session: str, places: Places) -> None:
        self._taken.setdefault(session, []).append(places)
        self._count[session] = self._count.get(session, 0) + len(places)
