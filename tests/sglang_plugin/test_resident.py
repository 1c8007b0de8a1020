"""Sessions on one worker without SGLang: a pool that counts, requests that are plain objects."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apd_replay.sglang_plugin import direct, links, memory, resident, snapshot
from apd_replay.sglang_plugin.admission import Question
from apd_replay.sglang_plugin.events import Events
from apd_replay.sglang_plugin.resident import Resident
from apd_replay.sglang_plugin.sessions import Stage
from apd_replay.sglang_plugin.settings import Settings


class Pool:
    """Stands in for Tree: a pin is the number of tokens it holds."""

    page_size = 1

    def __init__(self, total: int) -> None:
        self.total_tokens, self.held = total, 0

    def free_tokens(self) -> int:
        return self.total_tokens - self.held

    def pin(self, req: Any) -> tuple[int, int]:
        tokens = len(req.origin_input_ids) + len(req.output_ids)
        self.held += tokens
        return tokens, tokens

    def unpin(self, pin: int | None) -> int:
        self.held -= pin or 0
        return pin or 0


def request(session: str | None, turn: int, prompt: int = 90, output: int = 10, host: str = "p") -> Any:
    return SimpleNamespace(rid=f"{session}-{turn}", routing_key=session, origin_input_ids=[0] * prompt, output_ids=[0] * output, bootstrap_host=host,
                           req_pool_idx=None, finished=lambda: True)  # fmt: skip


Make = Callable[..., Resident]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Make:
    def make(total: int = 1000, writer: snapshot.Writer | None = None, **told: Any) -> Resident:
        pool = Pool(total)
        monkeypatch.setattr(resident, "Tree", lambda scheduler: pool)
        scheduler = SimpleNamespace(running_batch=SimpleNamespace(reqs=[]), waiting_queue=[],
                                    disagg_decode_prealloc_queue=SimpleNamespace(queue=[], retracted_queue=[]),
                                    disagg_decode_transfer_queue=SimpleNamespace(queue=[]))  # fmt: skip
        return Resident(scheduler, Settings(**told), Events(str(tmp_path / "events.jsonl")), writer)

    return make


def turn(worker: Resident, name: str, k: int = 0, tokens: int = 100) -> None:
    """A turn through a P, from arrival to end."""
    req = request(name, k, tokens - 10)
    worker.arrived(req, direct=False)
    worker.ended(req, keep=True)


def question(name: str, append: int = 20, history: int = 100) -> Question:
    return Question(name, append, 0, history)


def events_of(worker: Resident, tmp_path: Path, kind: str) -> list[dict[str, Any]]:
    worker.events.close()
    rows = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    return [r for r in rows if r["event"] == kind]


def test_only_a_session_that_is_kept_here_is_admitted(make: Make) -> None:
    worker = make()
    assert worker.admit(question("a"))["reason"] == "no_session"
    turn(worker, "a")
    found = worker.admit(question("a"))
    assert found["can_admit"] and found["resident_tokens"] == 100 and found["needed_tokens"] == 20 and found["available_tokens"] == 900
    worker.arrived(request("a", 1, host=direct.MARK, output=0), direct=True)
    assert worker.admit(question("a"))["reason"] == "busy"


def test_requests_without_a_session_are_left_alone(make: Make) -> None:
    worker = make()
    req = request(None, 0)
    worker.arrived(req, direct=False)
    worker.ended(req, keep=True)
    assert len(worker.sessions) == 0 and worker.tree.free_tokens() == 1000


def test_idle_sessions_make_way_for_an_admission_with_the_contracts_line(make: Make, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    worker = make(total=310)
    for name in "abc":
        turn(worker, name)
    with caplog.at_level(logging.INFO, "sglang.srt.apd_replay"):
        found = worker.admit(question("a", append=120))
    assert found["can_admit"] and found["evicted_session_count"] == 2 and found["available_tokens"] == 210
    assert [r.getMessage() for r in caplog.records] == ["Session trim: evicted 2 idle sessions, 200 tokens freed"]
    assert worker.admit(question("b"))["reason"] == "slot_lost"
    trims = events_of(worker, tmp_path, "trim")
    assert [(t["sessions"], t["freed_tokens"], t["asked_tokens"]) for t in trims] == [(["b", "c"], 200, 110)]


def test_a_commit_that_cannot_win_evicts_nobody_and_a_coupled_call_evicts_all_the_same(make: Make) -> None:
    for mode, evicted in (("commit", 0), ("coupled", 1)):
        worker = make(total=250, admission=mode)
        turn(worker, "a")
        turn(worker, "b")
        found = worker.admit(question("a", append=160))
        assert not found["can_admit"] and found["evicted_session_count"] == evicted, mode


def test_of_two_for_the_last_tokens_a_commit_lets_one_pass(make: Make) -> None:
    for mode, admitted in (("commit", [True, False]), ("coupled", [True, True])):
        worker = make(total=230, admission=mode)
        turn(worker, "a")
        turn(worker, "b")
        assert [worker.admit(question(name, append=30))["can_admit"] for name in "ab"] == admitted, mode


def test_an_admission_that_is_not_used_expires(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    worker = make(total=230, admission="commit", admission_expires_s=5)
    turn(worker, "a")
    turn(worker, "b")
    now = resident.time.monotonic()
    assert worker.admit(question("a", append=30))["can_admit"]
    monkeypatch.setattr(resident.time, "monotonic", lambda: now + 6)
    assert worker.admit(question("b", append=30))["can_admit"]
    assert [e["session"] for e in events_of(worker, tmp_path, "admission_expired")] == ["a"]


def test_a_reservation_ends_on_time_although_nobody_calls(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that waits for the reserved tokens, alone: SGLang's loop turns, and nothing else happens."""
    worker = make(admission="commit", admission_expires_s=5)
    turn(worker, "a")
    now = resident.time.monotonic()
    worker.admit(question("a", append=30))
    scheduler = SimpleNamespace(waiting_queue=[], chunked_req=None, last_batch=None)
    for later, reserved in ((4.9, 30), (5.1, 0)):
        monkeypatch.setattr(resident.time, "monotonic", lambda later=later: now + later)
        direct.next_batch(worker, lambda scheduler: None, scheduler)
        assert worker.sessions.reserved_tokens() == reserved


def test_the_snapshot_tells_each_open_session_and_follows_a_loop_without_batches(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    place = snapshot.open_memory(snapshot.create())
    worker = make(writer=snapshot.Writer(place))
    for name in ("idle", "cold", "under way", "closing"):
        turn(worker, name)
    worker.arrived(request("under way", 1, 120, output=0, host=direct.MARK), direct=True)
    worker.arrived(request("closing", 1, 120, output=0, host=direct.MARK), direct=True)
    cold = worker.sessions.get("cold")
    assert cold is not None
    worker.tree.unpin(worker.sessions.drop(cold))
    worker.close("closing")
    turn(worker, "gone")
    worker.close("gone")
    found = snapshot.read(place)
    assert found is not None and found.drained_tokens_per_s > 0
    assert [found.tokens_of(name) for name in ("idle", "cold", "under way", "closing", "gone")] == [100, 0, snapshot.UNDER_WAY, None, None]
    worker._scheduler.disagg_decode_prealloc_queue.queue.append("waits")
    now = resident.time.monotonic()
    for later, waiting in ((0.0, 0), (resident.REFRESH_S + 0.01, 1)):
        monkeypatch.setattr(resident.time, "monotonic", lambda later=later: now + later)
        worker.once_a_loop()
        found = snapshot.read(place)
        assert found is not None and found.numbers.prealloc_queue == waiting


def test_a_direct_turn_keeps_its_slot_until_it_is_in_a_batch(make: Make) -> None:
    worker = make()
    turn(worker, "a")
    worker.admit(question("a"))
    req = request("a", 1, 120, output=0, host=direct.MARK)
    worker.arrived(req, direct=True)
    assert worker.tree.free_tokens() == 900
    worker.scheduled(req, prefix_tokens=100, new_tokens=20, chunk=False)
    assert worker.tree.free_tokens() == 1000, "SGLang's own request holds it from here on"
    req.output_ids = [0] * 8
    worker.ended(req, keep=True)
    assert worker.sessions.held_tokens == 128 and worker.tree.free_tokens() == 872


def test_a_turn_that_finds_its_slot_gone_is_told_in_an_event(make: Make, tmp_path: Path) -> None:
    worker = make()
    turn(worker, "a")
    worker.make_room(10_000)
    worker.arrived(request("a", 1, 120, output=0, host=direct.MARK), direct=True)
    assert [e["reason"] for e in events_of(worker, tmp_path, "slot_lost")] == ["trim", "gone before the turn came"]


def test_waiting_turns_do_not_wait_for_each_other_for_ever(make: Make) -> None:
    worker = make()
    for name in "abc":
        turn(worker, name)
        worker.arrived(request(name, 1, 120, output=0, host=direct.MARK), direct=True)
    first = worker.sessions.get("a")
    assert worker.free_a_waiting_slot(but=first) and worker.free_a_waiting_slot(but=first)
    assert not worker.free_a_waiting_slot(but=first)
    assert [s.id for s in worker.sessions if s.tokens] == ["a"] and worker.tree.free_tokens() == 900


def test_closing_gives_everything_back(make: Make) -> None:
    worker = make()
    turn(worker, "a")
    assert worker.close("a") == {"session": "a", "known": True, "freed_tokens": 100, "held_tokens": 0}
    assert worker.close("a")["known"] is False
    turn(worker, "b")
    req = request("b", 1, 120, output=0, host=direct.MARK)
    worker.arrived(req, direct=True)
    assert worker.close("b")["freed_tokens"] == 0
    worker.ended(req, keep=True)
    assert len(worker.sessions) == 0 and worker.tree.free_tokens() == 1000


def test_a_retracted_request_is_not_over(make: Make) -> None:
    worker = make()
    req = request("a", 0)
    worker.arrived(req, direct=False)
    req.finished = lambda: False
    memory.release(worker, lambda *_: None, req, None, is_insert=False)
    session = worker.sessions.get("a")
    assert session is not None and session.stage is Stage.RUNNING and worker.tree.free_tokens() == 1000
    req.finished = lambda: True
    memory.release(worker, lambda *_: None, req, None)
    assert session.stage is Stage.IDLE and worker.tree.free_tokens() == 900


def test_running_requests_are_not_retracted_while_idle_sessions_hold_the_pool(make: Make) -> None:
    worker = make(total=205)
    turn(worker, "a")
    turn(worker, "b")
    memory.before_decode_step(worker, SimpleNamespace(new_tokens_required_next_decode=lambda selected: 6), None)
    assert worker.tree.free_tokens() == 105


def test_0_5_15s_resumed_requests_start_at_the_root(make: Make) -> None:
    worker, req, later = make(), request("a", 0), request("b", 0)
    req.last_node, later.last_node, later.lock_receipt = None, None, object()
    queue = SimpleNamespace(retracted_queue=[], tree_cache=SimpleNamespace(root_node="root"))
    assert memory.resume(worker, lambda q: [req, later], queue) == [req, later]
    assert req.last_node == "root" and later.last_node is None


@pytest.mark.parametrize(("host", "output", "row", "expected"), [(direct.MARK, 0, None, True), ("10.0.0.1", 0, None, False), (direct.MARK, 1, None, False), (direct.MARK, 0, 3, False)])
def test_what_makes_a_turn_direct(host: str, output: int, row: int | None, expected: bool) -> None:
    old = request("a", 1, output=output, host=host)
    old.req_pool_idx = row
    new = request("a", 1, output=output, host=host)
    new.kv = SimpleNamespace(holds_kv=row is not None)
    assert direct.is_direct(old) is direct.is_direct(new) is expected


def test_a_link_that_fails_and_recovers_is_two_events(tmp_path: Path) -> None:
    codes = iter([0, -1, -1, 0, 0])
    records: dict[int, str] = {}

    def conclude_failure(*, bootstrap_room: int, failure_reason: str, targets: Any = None) -> None:
        records.setdefault(bootstrap_room, failure_reason)

    manager = SimpleNamespace(send_kvcache=lambda peer, indices: next(codes), record_failure=records.__setitem__, conclude_failure=conclude_failure,
                              failure_records=records)  # fmt: skip
    events = Events(str(tmp_path / "e.jsonl"))
    assert links.watch(manager, "prefill", events) == ["record_failure", "conclude_failure", "send_kvcache"]
    assert [manager.send_kvcache("d:1", [0] * 7) for _ in range(5)] == [0, -1, -1, 0, 0]
    manager.record_failure(4, "dead")
    manager.conclude_failure(bootstrap_room=5, failure_reason="lost")
    manager.conclude_failure(bootstrap_room=5, failure_reason="could be dead", targets=[])
    events.close()
    rows = [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()]
    assert [r["event"] for r in rows] == ["link_failed", "link_failed", "link_recovered", "transfer_failed", "transfer_failed"]
    assert [r["reason"] for r in rows[3:]] == ["dead", "lost"] and records == {4: "dead", 5: "lost"}
    assert rows[0]["peer"] == "d:1" and rows[0]["tokens"] == 7 and rows[3]["room"] == 4
