"""The HTTP driver against a fake server: what it sends, when, and what it makes of every kind of answer."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from fake_server import Exchange, FakeServer, abort, answer, serving

from apd_replay.errors import RunError
from apd_replay.replay import health
from apd_replay.replay.core import AdmissionAnswer, PlannedSession, ReplayCore, Request, Settings
from apd_replay.replay.http import HttpDriver, HttpSettings, PrefillTarget, ServedBy, Targets
from apd_replay.replay.prompts import Prompts
from apd_replay.routing.round_robin import RoundRobin, RoundRobinPrefill
from apd_replay.routing.view import ClusterView, WorkerView
from apd_replay.trace.model import Session, Trace, Turn


class Journal:
    def __init__(self) -> None:
        self.rows: list[Request] = []
        self.admissions: list[AdmissionAnswer] = []

    def request(self, request: Request) -> None:
        self.rows.append(request)

    def admission(self, t: float, request: Request, answer: AdmissionAnswer, latency_s: float) -> None:
        self.admissions.append(answer)

    def pause(self, *_: Any) -> None: ...

    def binding(self, *_: Any) -> None: ...


class Pinned(RoundRobin):
    """A session stays where it began, as kv_aware keeps it."""

    def choose(self, prompt: Any, view: ClusterView, home: int | None) -> int:
        return super().choose(prompt, view, home) if home is None else home


def turn(session: str, number: int, prompt: int, output: int = 3, gap_s: float | None = 0.0, **more: Any) -> Turn:
    return Turn(session, number, 0.0, gap_s if number else None, None, prompt, output, **more)


class Replay:
    """A driver over fake servers, ready to run."""

    def __init__(self, turns: list[list[Turn]], *, decode: list[FakeServer], prefill: list[FakeServer] = (), router: FakeServer | None = None,  # type: ignore[assignment]
                 resident: bool = False, concurrency: int = 8, timeout_s: float = 5.0, time_limit_s: float | None = None, generated: bool = True) -> None:
        self.journal = Journal()
        trace = Trace("t", "0", tuple(Session(t[0].session, tuple(t)) for t in turns))
        sessions = [PlannedSession(s.id, 0.0, tuple(
            Request(f"{t.session}-{t.turn}", t.session, t.turn, t.input_tokens, t.output_tokens, t.shared_tokens, t.hash_ids, t.gap_s or 0.0) for t in s.turns)) for s in trace.sessions]
        targets = Targets(tuple(s.address for s in decode), tuple(PrefillTarget(p.address, p.address.host, 8998 + i) for i, p in enumerate(prefill)), router and router.address)
        view = ClusterView([WorkerView(f"decode-{i}") for i in range(targets.choices)], [WorkerView(f"prefill-{i}") for i in range(len(prefill))])
        served = ServedBy(self.journal) if router else None
        self.core = ReplayCore(sessions, Settings(concurrency, bool(prefill), resident), view, Pinned(), RoundRobinPrefill() if prefill else None, served or self.journal)
        self.driver = HttpDriver(self.core, targets, Prompts(trace, 1, generated=generated), HttpSettings(timeout_s, 512, time_limit_s), served_by=served)

    async def run(self) -> dict[str, Any]:
        out = await self.driver.run()
        self.core.check_books()
        return out

    @property
    def rows(self) -> dict[str, Request]:
        return {r.id: r for r in self.journal.rows}


def replayed(turns: list[list[Turn]], handlers: dict[str, Callable[[Exchange], Any]] | None = None, **options: Any) -> tuple[Replay, dict[str, FakeServer]]:
    """Run to the end. `handlers`: what each server does, by name `decode-0`, `prefill-0`, `router`; a decode-0 that answers, if none."""

    async def go() -> tuple[Replay, dict[str, FakeServer]]:
        async with AsyncExitStack() as stack:
            servers = {name: await stack.enter_async_context(serving(handler)) for name, handler in (handlers or {"decode-0": answer}).items()}
            chosen = {role: [s for n, s in servers.items() if n.startswith(role)] for role in ("decode", "prefill")}
            replay = Replay(turns, decode=chosen["decode"], prefill=chosen["prefill"], router=servers.get("router"), **options)
            await replay.run()
            return replay, servers

    return asyncio.run(go())


async def ok(x: Exchange) -> None:
    await answer(x)


def one(**more: Any) -> list[list[Turn]]:
    return [[turn("a", 0, 20, **more)]]


# what is sent ---------------------------------------------------------------------------------------------------------


def test_follow_up_prompt_carries_the_generated_tokens() -> None:
    replay, servers = replayed([[turn("a", 0, 20), turn("a", 1, 40), turn("a", 2, 60)]])
    first, second, third = servers["decode-0"].requests
    assert second.prompt[:23] == first.prompt + first.output(3)
    assert third.prompt[:43] == second.prompt + second.output(3)
    assert [len(x.prompt) for x in servers["decode-0"].requests] == [20, 40, 60]
    assert [r.status for r in replay.journal.rows] == ["ok"] * 3


def test_stand_ins_take_the_answers_place_where_the_trace_is_to_be_followed() -> None:
    _, servers = replayed([[turn("a", 0, 20), turn("a", 1, 40)]], generated=False)
    first, second = servers["decode-0"].requests
    assert second.prompt[:20] == first.prompt
    assert second.prompt[20:23] != first.output(3)


def test_a_prompt_that_shrinks_keeps_what_it_shares() -> None:
    _, servers = replayed([[turn("a", 0, 40), turn("a", 1, 30, shared_tokens=10)]])
    first, second = servers["decode-0"].requests
    assert second.prompt[:10] == first.prompt[:10] and len(second.prompt) == 30
    assert second.prompt[10:30] != first.prompt[10:30]


def test_equal_hash_ids_give_equal_tokens_and_no_others() -> None:
    a = turn("a", 0, 40, hash_ids=(1, 2, 3), block_size=16)
    b = turn("b", 0, 45, hash_ids=(1, 2, 9), block_size=16)
    _, servers = replayed([[a], [b]])
    p, q = sorted((x.prompt for x in servers["decode-0"].requests), key=len)
    assert p[:32] == q[:32]
    assert p[32:40] != q[32:40] and p[:16] != p[16:32]


def test_prompts_are_the_same_on_every_run_and_differ_between_sessions() -> None:
    prompts = [sorted(tuple(x.prompt) for x in replayed([[turn("a", 0, 30)], [turn("b", 0, 30)]])[1]["decode-0"].requests) for _ in range(2)]
    assert prompts[0] == prompts[1]
    assert prompts[0][0][:4] != prompts[0][1][:4]


def test_prefill_and_decode_get_the_same_body_with_rooms_of_their_own() -> None:
    replay, servers = replayed([[turn("a", 0, 20), turn("a", 1, 40)], [turn("b", 0, 20)]], {"prefill-0": ok, "decode-0": ok, "decode-1": ok})
    sent = {x.body["rid"]: x.body for x in servers["prefill-0"].requests}
    got = {x.body["rid"]: x.body for s in ("decode-0", "decode-1") for x in servers[s].requests}
    assert sent == got and len(sent) == 3
    rooms = [b["bootstrap_room"] for b in sent.values()]
    assert len(set(rooms)) == 3 and all(0 <= room < 1 << 63 for room in rooms)
    assert all(b["bootstrap_host"] == "127.0.0.1" and b["bootstrap_port"] == 8998 for b in sent.values())
    assert {r.room for r in replay.journal.rows} == set(rooms)
    assert all(b["sampling_params"]["ignore_eos"] and b["stream"] for b in sent.values())


def test_a_session_goes_on_after_a_failed_turn_with_a_stand_in() -> None:
    async def fail_first(x: Exchange) -> None:
        await (x.reply(500, {"error": {"message": "no"}}) if len(x.prompt) == 20 else answer(x))

    replay, servers = replayed([[turn("a", 0, 20), turn("a", 1, 40)]], {"decode-0": fail_first})
    first, second = servers["decode-0"].requests
    assert second.prompt[:20] == first.prompt and len(second.prompt) == 40
    assert [r.status for r in replay.journal.rows] == ["error", "ok"]


# when -----------------------------------------------------------------------------------------------------------------


def test_no_turn_leaves_before_its_predecessor_ended_and_gaps_do_not_add_up() -> None:
    count, gap = 30, 0.03
    replay, servers = replayed([[turn("a", k, 20 + 5 * k, output=2, gap_s=gap) for k in range(count)]])
    requests = servers["decode-0"].requests
    errors = [after.t - before.ended_t - gap for before, after in itertools.pairwise(requests)]
    assert min(errors) > -0.002, "a turn left before its gap was over"
    assert sorted(errors)[len(errors) // 2] < 0.02
    rows = replay.journal.rows
    for before, after in itertools.pairwise(rows):
        assert after.scheduled_t == pytest.approx(before.finished_t + gap)
        assert after.dispatched_t >= after.scheduled_t


def test_a_prompt_is_built_while_its_turn_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    built: dict[str, float] = {}
    build = Prompts.build

    def watched(self: Prompts, request: Request) -> Any:
        built[request.id] = time.monotonic()
        return build(self, request)

    monkeypatch.setattr(Prompts, "build", watched)
    _, servers = replayed([[turn("a", 0, 20), turn("a", 1, 40, gap_s=0.3)]])
    assert servers["decode-0"].requests[1].t - built["a-1"] > 0.2


def test_first_token_is_the_first_delta_that_is_not_empty() -> None:
    async def slow(x: Exchange) -> None:
        await x.begin()
        await x.event({"output_ids": [], "meta_info": x.meta(0)})
        await asyncio.sleep(0.1)
        await x.event({"output_ids": [5], "meta_info": x.meta(1)})
        await asyncio.sleep(0.1)
        await x.event({"output_ids": [5, 6, 7], "meta_info": x.meta(3, finish_reason={"type": "length"})})
        await x.end()

    row = replayed(one(), {"decode-0": slow})[0].journal.rows[0]
    assert 0.09 < row.first_token_t - row.dispatched_t < 0.19
    assert row.finished_t - row.first_token_t > 0.09


def test_concurrency_is_the_only_limit_and_connections_are_used_again() -> None:
    async def slow(x: Exchange) -> None:
        await answer(x, step_s=0.01)

    turns = [[turn(f"s{s}", k, 10 + 10 * k, output=2) for k in range(3)] for s in range(12)]
    replay, servers = replayed(turns, {"decode-0": slow}, concurrency=4)
    assert replay.core.peak_inflight == 4
    assert servers["decode-0"].connections == 4 and len(replay.journal.rows) == 36


def test_a_connection_that_idled_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apd_replay.replay.client.IDLE_LIMIT_S", 0.05)
    _, servers = replayed([[turn("a", 0, 20), turn("a", 1, 40, gap_s=0.15)]])
    assert servers["decode-0"].connections == 2


def test_the_time_limit_truncates_what_is_in_flight() -> None:
    async def forever(x: Exchange) -> None:
        await x.begin()
        await asyncio.sleep(30)

    started = time.monotonic()
    replay, _servers = replayed([[turn("a", 0, 20), turn("a", 1, 40)]], {"decode-0": forever}, time_limit_s=0.2)
    assert time.monotonic() - started < 3
    assert [r.status for r in replay.journal.rows] == ["truncated"] and replay.core.failed == 0


def test_a_client_that_cannot_keep_up_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stall(x: Exchange) -> None:
        time.sleep(0.3)  # the client shares this loop
        await answer(x)

    async def go() -> dict[str, Any]:
        async with serving(stall) as fake:
            return await Replay([[turn("a", k, 20 + 10 * k, gap_s=0.01) for k in range(4)], [turn("b", k, 20 + 10 * k, gap_s=0.01) for k in range(4)]], decode=[fake]).run()

    found = asyncio.run(go())
    assert any("event loop" in reason for reason in found["saturated"])
    monkeypatch.setattr(health, "LAG_LIMIT_S", 10.0)
    monkeypatch.setattr(health, "LATENESS_LIMIT_S", 10.0)
    monkeypatch.setattr(health, "CPU_LIMIT", 2.0)
    assert asyncio.run(go())["saturated"] == []


# what comes back ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("incremental", [False, True])
def test_both_ways_of_streaming_give_the_same_answer(incremental: bool) -> None:
    async def stream(x: Exchange) -> None:
        await answer(x, incremental=incremental)

    replay, servers = replayed([[turn("a", 0, 20, output=6), turn("a", 1, 40)]], {"decode-0": stream})
    first, second = servers["decode-0"].requests
    assert second.prompt[20:26] == first.output(6)
    assert replay.rows["a-0"].output_tokens == 6 and replay.rows["a-0"].finish_reason == "length"


def test_a_200_that_ends_in_abort_is_an_error() -> None:
    async def aborting(x: Exchange) -> None:
        await abort(x, "KVTransferError(bootstrap_room=1): Failed to send kv chunk of 1 to 127.0.0.1:2", 500)

    row = replayed(one(), {"decode-0": aborting})[0].journal.rows[0]
    assert (row.status, row.error_kind) == ("error", "kv_transfer") and "Failed to send" in row.error_message


@pytest.mark.parametrize(("meta", "said"), [({"completion_tokens": 2}, "asked for 3 tokens, received 2"), ({"prompt_tokens": 21}, "the server counted 21")])
def test_lengths_other_than_asked_are_protocol_errors(meta: dict[str, int], said: str) -> None:
    async def wrong(x: Exchange) -> None:
        await x.begin()
        await x.event({"output_ids": x.output(3), "meta_info": {**x.meta(3, finish_reason={"type": "stop"}), **meta}})
        await x.end()

    row = replayed(one(), {"decode-0": wrong})[0].journal.rows[0]
    assert row.error_kind == "protocol" and said in row.error_message


def test_an_answer_that_does_not_come_is_given_up_and_the_server_learns_it() -> None:
    async def never(x: Exchange) -> None:
        await asyncio.sleep(30)

    replay, _servers = replayed(one(), {"decode-0": never}, timeout_s=0.2)
    assert replay.journal.rows[0].error_kind == "client_timeout"


def test_a_server_that_is_not_there_and_one_that_hangs_up() -> None:
    async def hang_up(x: Exchange) -> None:
        await x.begin()
        await x.event({"output_ids": [1], "meta_info": x.meta(1)})
        x.hang_up()

    row = replayed(one(), {"decode-0": hang_up})[0].journal.rows[0]
    assert (row.error_kind, row.first_token_t is None) == ("connection", False)

    async def nobody() -> Replay:
        async with serving(ok) as fake:
            pass
        replay = Replay(one(), decode=[fake])
        await replay.run()
        return replay

    assert asyncio.run(nobody()).journal.rows[0].error_kind == "connection"


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_an_http_error_keeps_its_class_and_message(status: int) -> None:
    async def refuse(x: Exchange) -> None:
        await x.reply(status, {"error": {"message": "The request is refused."}})

    row = replayed(one(), {"decode-0": refuse})[0].journal.rows[0]
    assert row.error_kind == f"http_{status // 100}xx" and row.error_message == f"HTTP {status}: The request is refused."


def test_something_that_is_not_http_is_a_protocol_error() -> None:
    async def garbage(x: Exchange) -> None:
        x._writer.write(b"+OK what do you want\r\n\r\n")

    assert replayed(one(), {"decode-0": garbage})[0].journal.rows[0].error_kind == "protocol"


def test_of_two_sides_the_one_that_knows_the_cause_is_believed() -> None:
    async def latched(x: Exchange) -> None:
        await asyncio.sleep(0.05)
        await x.reply(500, {"error": {"message": "KVTransferError(bootstrap_room=3): Decode instance could be dead, remote mooncake session 127.0.0.1:9 is not alive"}})

    async def told(x: Exchange) -> None:
        await abort(x, "Decode transfer failed ... Failed to get kvcache from prefill instance, it might be dead", 500)

    row = replayed(one(), {"prefill-0": latched, "decode-0": told})[0].journal.rows[0]
    assert row.error_kind == "peer_dead"
    assert row.finished_t - row.dispatched_t < 0.05  # known when the first side said so


def test_a_prefill_that_fails_ends_a_turn_its_decode_would_wait_for() -> None:
    async def refuse(x: Exchange) -> None:
        await x.reply(500, {"error": {"message": "Request 7 timed out after 300.0s in KVPoll.Bootstrapping"}})

    async def wait(x: Exchange) -> None:
        await x.begin()
        await asyncio.sleep(30)

    async def go() -> tuple[Replay, FakeServer]:
        async with serving(refuse) as prefill, serving(wait) as decode:
            replay = Replay(one(), decode=[decode], prefill=[prefill])
            await replay.run()
            await asyncio.sleep(0.1)
            return replay, decode

    replay, decode = asyncio.run(go())
    assert replay.journal.rows[0].error_kind == "bootstrap_timeout"
    assert len(decode.hung_up) == 1, "the decode worker was left waiting"


def test_a_decode_that_is_gone_fails_its_turns_at_once_and_never_before_they_left() -> None:
    async def wait(x: Exchange) -> None:
        await x.begin()
        await asyncio.sleep(30)

    async def go() -> Replay:
        async with serving(ok) as decode:
            pass
        async with serving(wait) as prefill:
            replay = Replay([[turn("a", k, 20 + 10 * k) for k in range(3)]], decode=[decode], prefill=[prefill])
            await replay.run()
            return replay

    started = time.monotonic()
    found = asyncio.run(go()).journal.rows
    assert time.monotonic() - started < 2 and [r.error_kind for r in found] == ["connection"] * 3
    assert all(r.finished_t >= r.dispatched_t for r in found)


def test_the_router_says_who_served_or_nobody_does() -> None:
    async def routed(x: Exchange) -> None:
        await answer(x, **({"weight_version": "worker-1"} if len(x.prompt) == 20 else {"weight_version": "default"}))

    replay, _ = replayed([[turn("a", 0, 20), turn("a", 1, 40)]], {"router": routed, "decode-0": ok, "decode-1": ok})
    assert [r.decode for r in replay.journal.rows] == [1, -1]


# resident sessions ----------------------------------------------------------------------------------------------------


def resident(decisions: list[dict[str, Any]]) -> Callable[[Exchange], Any]:
    async def handle(x: Exchange) -> None:
        if x.path == "/generate":
            await answer(x, cached_tokens=len(x.prompt) - 17)
        elif x.path == "/admit_direct_append":
            await x.reply(200, decisions.pop(0))
        else:
            await x.reply(200, {})

    return handle


def test_an_admitted_turn_goes_to_its_decode_alone_and_a_refused_one_through_prefill() -> None:
    decode = resident([{"can_admit": True, "queue_depth": 2, "available_tokens": 9, "unknown": 1}, {"can_admit": False, "reason": "full"}])
    replay, servers = replayed([[turn("a", 0, 20), turn("a", 1, 40), turn("a", 2, 60)]], {"prefill-0": ok, "decode-0": decode}, resident=True)
    assert [r.path for r in replay.journal.rows] == ["seed", "direct", "fallback"]
    by_rid = {x.body.get("rid"): x for x in servers["decode-0"].requests if x.path == "/generate"}
    assert by_rid["a-1"].body["bootstrap_host"] == "direct" and "bootstrap_room" not in by_rid["a-1"].body
    assert len(by_rid["a-1"].prompt) == 40 and {x.body["routing_key"] for x in by_rid.values()} == {"a"}
    assert [x.body["rid"] for x in servers["prefill-0"].requests] == ["a-0", "a-2"]
    asked = [x.body for x in servers["decode-0"].requests if x.path == "/admit_direct_append"]
    assert [(q["session"], q["history_tokens"], q["appended_tokens"], q["output_reserve_tokens"]) for q in asked] == [("a", 23, 17, 512), ("a", 43, 17, 512)]
    assert replay.journal.admissions[0].queue_depth == 2
    assert servers["decode-0"].requests[-1].path == "/close_direct_session"
    assert [r.slot_lost for r in replay.journal.rows] == [None, False, None]


def test_a_direct_turn_that_computed_its_history_again_lost_its_slot() -> None:
    async def cold(x: Exchange) -> None:
        await (answer(x, cached_tokens=0) if x.path == "/generate" else x.reply(200, {"can_admit": True}))

    replay, _ = replayed([[turn("a", 0, 20), turn("a", 1, 40)]], {"prefill-0": ok, "decode-0": cold}, resident=True)
    assert replay.rows["a-1"].slot_lost is True


def test_workers_without_the_plugin_end_a_resident_run_with_one_line() -> None:
    async def stock(x: Exchange) -> None:
        await (answer(x) if x.path == "/generate" else x.reply(404, {"detail": "Not Found"}))

    with pytest.raises(RunError, match=r"has no /admit_direct_append.*sglang\.plugin: true"):
        replayed([[turn("a", 0, 20), turn("a", 1, 40)]], {"prefill-0": ok, "decode-0": stock}, resident=True)


def test_an_admission_or_a_close_without_an_answer_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def mute(x: Exchange) -> None:
        if x.path == "/generate":
            await answer(x)
        else:
            await asyncio.sleep(30)

    monkeypatch.setattr("apd_replay.replay.http.CLOSE_LIMIT_S", 0.2)
    replay, _ = replayed([[turn("a", 0, 20), turn("a", 1, 40)]], {"prefill-0": ok, "decode-0": mute}, resident=True, timeout_s=0.3)
    assert [r.path for r in replay.journal.rows] == ["seed", "fallback"] and replay.rows["a-1"].admission == "rejected"
