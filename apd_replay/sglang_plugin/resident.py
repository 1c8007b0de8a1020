"""Sessions on one decode worker, inside its scheduler: slots over SGLang's radix tree, admission, eviction, and the events of all that.

Everything here runs in the scheduler's thread, between two of its steps.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from apd_replay.replay.hints import DrainMeter
from apd_replay.sglang_plugin import admission
from apd_replay.sglang_plugin.admission import Numbers, Question
from apd_replay.sglang_plugin.events import Events
from apd_replay.sglang_plugin.sessions import Session, Sessions, Stage
from apd_replay.sglang_plugin.settings import Settings
from apd_replay.sglang_plugin.snapshot import UNDER_WAY, Writer
from apd_replay.sglang_plugin.tree import Tree

log = logging.getLogger("sglang.srt.apd_replay")  # below SGLang's own loggers: the same handlers and line format
REFRESH_S = 0.1  # how old the snapshot may become where no batch ends: requests that wait for room still change the queues


class Resident:
    """`snapshot`: where the numbers go for readers in other processes; None where nobody reads."""

    def __init__(self, scheduler: Any, settings: Settings, events: Events, snapshot: Writer | None) -> None:
        self._scheduler, self.settings, self.events, self._snapshot = scheduler, settings, events, snapshot
        self.tree = Tree(scheduler)
        self.sessions = Sessions()
        self._hint = settings.pause_ms()
        self._drained = DrainMeter()
        self._published_s = 0.0

    # calls ------------------------------------------------------------------------------------------------------------

    def admit(self, question: Question) -> dict[str, Any]:
        """Answer an admission call; may evict idle sessions for it."""
        now = self._now()
        session = self.sessions.get(question.session)
        refusal = self._refusal(session)
        evicted = 0
        if not refusal:
            assert session is not None
            short = question.need(session.tokens) - self._available(session)
            # a call that commits evicts only where that is enough; the coupled one of the design under test evicts all it can
            if short > 0 and (self.settings.admission != "commit" or self.reclaimable_tokens(session) >= short):
                evicted = self.make_room(short, but=session)
        numbers = self._numbers(session)
        answer = admission.answer(question, numbers, session.tokens if session else None, refusal, evicted, self._hint, self._drained.rate(now))
        if answer["can_admit"]:
            assert session is not None
            reserve = answer["needed_tokens"] if self.settings.admission == "commit" else 0
            self.sessions.admit(session, now, self.settings.admission_expires_s, reserve)
        self.events.record("admission", session=question.session, **answer)
        self.publish()
        return answer

    def close(self, name: str) -> dict[str, Any]:
        session, pin = self.sessions.close(name)
        freed = self._released(name, pin, "close") if pin is not None else 0
        self._drained.left(self._now(), freed)
        if session is not None and not session.closing:
            self._closed(name)
        self.publish()
        return {"session": name, "known": session is not None, "freed_tokens": freed, "held_tokens": self.sessions.held_tokens}

    # the life of a turn -----------------------------------------------------------------------------------------------

    def arrived(self, req: Any, *, direct: bool) -> None:
        """A request of a session came in; requests without a session are none of ours."""
        name = session_of(req)
        if name is None:
            return
        known = self.sessions.get(name) is not None
        session, pin = self.sessions.arrive(name, req.rid, direct=direct, now=self._now())
        if not known:
            log.info("Session opened: %s (active=%d)", name, len(self.sessions))
            self.events.record("session_open", session=name, rid=req.rid)
        self.tree.unpin(pin)  # a turn through P: what is here of its prefix stays in the tree, and only the rest travels
        if direct and session.tokens == 0:
            self.events.record("slot_lost", session=name, rid=req.rid, input_tokens=len(req.origin_input_ids), reason="gone before the turn came")

    def scheduled(self, req: Any, *, prefix_tokens: int, new_tokens: int, chunk: bool) -> None:
        """A direct turn, or its next chunk, is in a batch."""
        self.events.record("append", session=session_of(req), rid=req.rid, prefix_tokens=prefix_tokens, new_tokens=new_tokens, chunk=chunk)
        session = self._session(req)
        if session is not None:
            self.tree.unpin(self.sessions.scheduled(session))

    def ended(self, req: Any, *, keep: bool) -> None:
        """A request is over. `keep`: its KV is in the tree, and the session's slot from now on."""
        session = self._session(req)
        if session is None or req.rid not in session.requests:
            return
        now = self._now()
        self.tree.unpin(self.sessions.ended(session, req.rid, now))
        if self.sessions.get(session.id) is None:
            self._closed(session.id)
        elif keep and not session.requests:
            pin, tokens = self.tree.pin(req)
            self.tree.unpin(self.sessions.keep(session, pin, tokens) if pin is not None else None)
        self.publish()  # before the client has its answer, and asks for the next turn

    def retracted(self, reqs: list[Any]) -> None:
        for req in reqs:
            self.events.record("retract", session=session_of(req), rid=req.rid, input_tokens=len(req.origin_input_ids), output_tokens=len(req.output_ids))

    # memory -----------------------------------------------------------------------------------------------------------

    def make_room(self, short_tokens: int, but: Session | None = None) -> int:
        """Take slots away until so many more tokens can be allocated, or none is left to take. How many sessions lost theirs."""
        self._now()
        freed, lost = 0, []
        for session in self.sessions.victims(self.settings.eviction, but):
            if freed >= short_tokens:
                break
            tokens = session.tokens
            freed += self.tree.unpin(self.sessions.drop(session))
            lost.append((session.id, tokens))
        if lost:
            log.info("Session trim: evicted %d idle sessions, %d tokens freed", len(lost), freed)
            self.events.record("trim", sessions=[name for name, _ in lost], freed_tokens=freed, asked_tokens=short_tokens)
            for name, tokens in lost:
                self.events.record("slot_lost", session=name, tokens=tokens, reason="trim")
        return len(lost)

    def reclaimable_tokens(self, but: Session | None = None) -> int:
        """The most that make_room can find; less where sessions share a prefix."""
        self._now()
        return sum(s.tokens for s in self.sessions.victims(self.settings.eviction, but))

    def free_a_waiting_slot(self, but: Session | None) -> bool:
        """Waiting turns whose slots fill the pool would wait for each other for ever: the last to come loses its own."""
        waiting = [s for s in self.sessions if s.stage in (Stage.QUEUED, Stage.ADMITTED) and s.tokens and s is not but]
        if not waiting:
            return False
        last = max(waiting, key=lambda s: s.used_s)
        tokens = last.tokens
        self.tree.unpin(self.sessions.drop(last))
        self.events.record("slot_lost", session=last.id, tokens=tokens, reason="all turns waited for each other")
        return True

    def drop_all(self) -> None:
        """The tree is about to be emptied."""
        for session in self.sessions:
            if session.pin is not None:
                tokens = session.tokens
                self.tree.unpin(self.sessions.drop(session))
                self.events.record("slot_lost", session=session.id, tokens=tokens, reason="cache flushed")

    def once_a_loop(self) -> None:
        """Nothing else may happen for long: a lone request that waits for room would never see a late admission's reservation end."""
        if self._now() - self._published_s >= REFRESH_S:
            self.publish()

    def publish(self) -> None:
        if self._snapshot is not None:
            self._published_s = self._now()
            there = [s for s in self.sessions if not s.closing]
            there.sort(key=lambda s: s.stage is Stage.COLD)  # where not all fit, those with a slot do
            slots = {s.id: UNDER_WAY if s.stage in (Stage.QUEUED, Stage.RUNNING) else s.tokens for s in there}
            self._snapshot.write(self._numbers(None), slots, self._drained.rate(self._published_s))

    # what the above share ---------------------------------------------------------------------------------------------

    def _now(self) -> float:
        """The time, once late admissions have been taken back."""
        now = time.monotonic()
        for session in self.sessions.expire(now):
            self.events.record("admission_expired", session=session.id)
        return now

    def _session(self, req: Any) -> Session | None:
        name = session_of(req)
        return None if name is None else self.sessions.get(name)

    def session_of_request(self, req: Any) -> Session | None:
        return self._session(req)

    def _refusal(self, session: Session | None) -> str:
        if session is None or session.closing:
            return "no_session"
        if session.stage is Stage.COLD:
            return "slot_lost"
        return "busy" if session.stage in (Stage.QUEUED, Stage.RUNNING) else ""

    def _available(self, session: Session | None) -> int:
        return self.tree.free_tokens() - self.sessions.reserved_tokens(but=session)

    def _numbers(self, session: Session | None) -> Numbers:
        worker = self._scheduler
        prealloc = worker.disagg_decode_prealloc_queue
        return Numbers(
            total_tokens=self.tree.total_tokens, available_tokens=self._available(session), held_tokens=self.sessions.held_tokens,
            running=len(worker.running_batch.reqs), waiting=len(worker.waiting_queue), prealloc_queue=len(prealloc.queue),
            transfer_queue=len(worker.disagg_decode_transfer_queue.queue), retracted_queue=len(prealloc.retracted_queue),
        )  # fmt: skip

    def _released(self, name: str, pin: Any, why: str) -> int:
        freed = self.tree.unpin(pin)
        log.info("Session KV released: %s (%d tokens freed)", name, freed)
        self.events.record("session_release", session=name, freed_tokens=freed, reason=why)
        return freed

    def _closed(self, name: str) -> None:
        log.info("Session closed: %s (active=%d)", name, len(self.sessions))
        self.events.record("session_close", session=name, active=len(self.sessions))


def session_of(req: Any) -> str | None:
    """The agent session a request belongs to: SGLang's `routing_key`, which it carries along and gives no meaning of its own."""
    key = req.routing_key
    return key if isinstance(key, str) and key else None
