"""The plugin on real workers, started once. The tests run in this order: the later ones break things."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from real_servers import CHUNK_TOKENS, Cluster, experiment, read_trace, requests_of, tokens, write_trace
from resident_servers import (
    APPEND_CHUNK_TOKENS,
    EXPIRES_S,
    POOL_FOR_TWO,
    Agent,
    Turn,
    call,
    has_pieces,
    held,
    plugin_events,
    side_by_side,
    specs,
    state,
    used,
    wait_for,
)

from apd_replay.cluster.run import run
from apd_replay.cluster.servers import Servers
from apd_replay.errors import RunError

pytestmark = pytest.mark.sglang


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "logs").mkdir()
    servers = specs(folder)
    with Servers(servers, folder / "logs") as running:
        yield Cluster(running, {s.name: s for s in servers})


def same_as_unified(cluster: Cluster, turns: list[Turn], *, forced: bool = False) -> None:
    """Tokens and logprobs of a unified worker on the same prompts; the model is shown to depend on its history (test_shared_cluster)."""
    for turn in turns:
        whole = cluster.generate("worker-0", turn.prompt, len(turn.output), return_logprob=True)
        assert turn.output == whole.json()["output_ids"], turn.path
        found, expected = ([e[0] for e in x.json()["meta_info"]["output_token_logprobs"]] for x in (turn.answer, whole))
        if forced:  # of a request that is retracted before its first token, SGLang's output streamer takes the first logprob for sent
            expected = expected[len(expected) - len(found) :] if len(expected) - len(found) <= 1 else expected
        assert len(found) == len(expected) and max(abs(a - b) for a, b in zip(found, expected, strict=True)) < 1e-4, (turn.path, found, expected)


def nothing_is_held(cluster: Cluster, decode: str) -> None:
    """Neither by the plugin's account nor by SGLang's, once its loop has turned."""
    assert held(cluster, decode) == 0
    wait_for("an empty pool", lambda: used(cluster, decode) == 0, within_s=20)


def healthy(cluster: Cluster, *decodes: str) -> None:
    """SGLang checks its pool's books whenever it is idle, and ends over a leak. Give it the time to be idle, then see it alive."""
    time.sleep(1.5)
    for decode in decodes:
        assert not [name for name in cluster.specs[decode].environment if "MEM_CHECK" in name], "nothing switches the check off"
        assert decode not in cluster.servers.ended()
        assert "leak" not in cluster.log(decode).split("server_args=")[-1].partition("\n")[2]
        assert httpx.get(f"{cluster.specs[decode].address.url}/health_generate", timeout=60).status_code in (200, 404)


def test_every_process_says_that_the_plugin_is_active(cluster: Cluster) -> None:
    for server in ("prefill-0", "decode-0", "decode-1", "decode-2"):
        active = plugin_events(cluster, server, "plugin_active")
        assert len({e["pid"] for e in active}) == len(active) >= 2, "the HTTP process and the scheduler at least"
        assert all(len(e["hooks"]) == len(set(e["hooks"])) >= 16 for e in active)
    assert not (cluster.servers.logs.parent / "events" / "worker-0.jsonl").exists()
    assert call(cluster, "worker-0", "/admit_direct_append", {}).status_code == 404
    assert call(cluster, "prefill-0", "/admit_direct_append", {"session": "a", "appended_tokens": 1}).status_code == 400
    assert call(cluster, "decode-0", "/admit_direct_append", {"session": "a"}).status_code == 400


@pytest.mark.parametrize(("spoiled", "words"), [
    ("del scheduler.Scheduler.flush_cache", "Scheduler.flush_cache is not there"),
    ("registry.HookRegistry._apply_target = None", "could not be hooked"),  # SGLang logs it and would serve on
    ("sglang.__version__ = '0.5.22'", "SGLang 0.5.22 was never tried"),
])  # fmt: skip
def test_what_cannot_be_hooked_ends_the_process_in_one_line(interpreter: str, spoiled: str, words: str) -> None:
    code = ("import sglang; from sglang.srt.managers import scheduler; from sglang.srt.plugins import hook_registry as registry\n"
            f"{spoiled}\nfrom sglang.srt.plugins import load_plugins; load_plugins(); print('served on')")  # fmt: skip
    variables = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "SGLANG_PLUGINS": "apd_replay", "APD_SGLANG_PLUGIN": "{}"}
    done = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, env=variables, timeout=300)
    assert done.returncode == 1 and "served on" not in done.stdout
    assert [line for line in done.stderr.splitlines() if line.startswith("apd_replay plugin: ") and words in line]


def test_a_worker_that_cannot_keep_sessions_does_not_come_up(tmp_path: Path) -> None:
    """What only the scheduler's process finds out ends the whole server, and says why."""
    needed = "--disaggregation-decode-enable-radix-cache"
    decode = next(s for s in specs(tmp_path) if s.role == "decode")
    (tmp_path / "logs").mkdir()
    with pytest.raises(RunError, match=f"decode-0 ended with status 1: resident sessions need {needed}"), Servers([replace(decode, argv=tuple(a for a in decode.argv if a != needed))], tmp_path / "logs"):
        pass


@pytest.mark.parametrize("decode", ["decode-0", "decode-2"])
def test_six_sessions_of_five_turns_compute_only_what_was_appended(cluster: Cluster, decode: str) -> None:
    agents = [Agent(cluster, decode, f"six-{decode}-{k}") for k in range(6)]
    side_by_side(agents, 5)
    for agent in agents:
        assert [t.path for t in agent.turns] == ["seed", "direct", "direct", "direct", "direct"]
        for turn in agent.turns[1:]:
            assert turn.history - 1 <= turn.cached <= turn.history
            assert turn.admission is not None and turn.history - 1 <= turn.admission["resident_tokens"] <= turn.history
        same_as_unified(cluster, agent.turns, forced=decode == "decode-2")
    names = {a.name for a in agents}
    computed: dict[str, int] = {}  # an append that does not fit into a batch's chunk any more comes in two pieces
    for event in plugin_events(cluster, decode, "append"):
        if event["session"] in names:
            computed[event["rid"]] = computed.get(event["rid"], 0) + event["new_tokens"]
    retracted = [e for e in plugin_events(cluster, decode, "retract") if e["session"] in names]
    assert bool(retracted) == (decode == "decode-2"), "the one that retracts every few steps for a test"
    again = {e["rid"] for e in retracted if e["output_tokens"] == 0}  # before their first token: they compute their append again
    assert len(computed) == 24 and all(20 <= tokens <= 21 for rid, tokens in computed.items() if rid not in again), computed
    total = sum(len(a.history) for a in agents)
    assert total - 6 <= held(cluster, decode) <= total, "all of every session but, at most, its last token"
    for agent in agents:
        assert agent.close()["known"]
    nothing_is_held(cluster, decode)
    healthy(cluster, decode)


def test_a_long_append_is_computed_in_pieces_beside_other_turns(cluster: Cluster) -> None:
    long, *others = [Agent(cluster, "decode-0", f"chunk-{k}") for k in range(4)]
    side_by_side([long, *others], 1)
    with ThreadPoolExecutor(4) as all_of_them:
        first = all_of_them.submit(long.turn, append=12 * APPEND_CHUNK_TOKENS, path="direct")
        rest = [all_of_them.submit(o.turn, path=p, answer=20) for o, p in zip(others, ("direct", "fallback", "direct"), strict=True)]
        turns = [first.result(), *(r.result() for r in rest)]
    same_as_unified(cluster, turns)
    pieces = [e for e in plugin_events(cluster, "decode-0", "append") if e["rid"] == "chunk-0-1"]
    assert len(pieces) >= 12 and all(e["new_tokens"] <= APPEND_CHUNK_TOKENS for e in pieces) and [e["chunk"] for e in pieces].count(False) == 1
    for agent in (long, *others):
        agent.close()
    healthy(cluster, "decode-0")


def test_a_fallback_turn_of_a_resident_session_still_comes_from_prefill(cluster: Cluster) -> None:
    agent = Agent(cluster, "decode-0", "back")
    for path in ("seed", "direct", "fallback", "direct"):
        agent.turn(path=path)
    same_as_unified(cluster, agent.turns)
    assert agent.turns[3].cached >= agent.turns[3].history - 1
    agent.close()
    assert held(cluster, "decode-0") == 0


def abort(cluster: Cluster, decode: str, rid: str) -> None:
    call(cluster, decode, "/abort_request", {"rid": rid})


def aborted(turn: Turn) -> bool:
    return turn.answer.status_code >= 400 or turn.answer.json()["meta_info"]["finish_reason"]["type"] == "abort"


def test_an_aborted_turn_leaves_the_session_resident(cluster: Cluster) -> None:
    """In the middle of its pieces, while it decodes, and while it is queued behind another turn's pieces."""
    agent, other = Agent(cluster, "decode-0", "abort"), Agent(cluster, "decode-0", "busy")
    side_by_side([agent, other], 1)
    kept = agent.history
    with ThreadPoolExecutor(2) as both:
        for append, output, decoding in ((60 * APPEND_CHUNK_TOKENS, 4, False), (20, 2000, True)):
            agent.history, rid = kept, f"abort-{len(agent.turns)}"
            under_way = both.submit(agent.turn, append=append, answer=output, path="direct")
            wait_for("the append", lambda r=rid, d=decoding: has_pieces(cluster, "decode-0", r, last=d))
            abort(cluster, "decode-0", rid)
            assert aborted(under_way.result()), under_way.result().answer.text[:300]
        agent.history, rid = kept, f"abort-{len(agent.turns)}"
        long = both.submit(other.turn, append=100 * APPEND_CHUNK_TOKENS, path="direct")
        wait_for("the other's append", lambda: has_pieces(cluster, "decode-0", "busy-1", last=False))
        queued = both.submit(agent.turn, path="direct")
        wait_for("a queued turn", lambda: state(cluster, "decode-0")["waiting"] > 0)
        abort(cluster, "decode-0", rid)
        assert aborted(queued.result()), queued.result().answer.text[:300]
        assert long.result().answer.status_code == 200
    assert len([e for e in plugin_events(cluster, "decode-0", "abort") if e["rid"] == rid]) == 1
    agent.history = kept
    after = agent.turn()
    assert after.path == "direct" and after.cached >= after.history - 1
    same_as_unified(cluster, [after, other.turns[1]])
    for one in (agent, other):
        one.close()
    nothing_is_held(cluster, "decode-0")
    healthy(cluster, "decode-0")


def test_a_session_closed_in_the_middle_of_a_turn_ends_with_it(cluster: Cluster) -> None:
    agent = Agent(cluster, "decode-0", "closed")
    agent.turn()
    with ThreadPoolExecutor(1) as one:
        under_way = one.submit(agent.turn, answer=300, path="direct")
        wait_for("the append", lambda: has_pieces(cluster, "decode-0", "closed-1", last=True))
        assert agent.close()["known"] and not under_way.done()
        same_as_unified(cluster, [under_way.result()])
    nothing_is_held(cluster, "decode-0")
    assert agent.ask()["reason"] == "no_session"
    healthy(cluster, "decode-0")


def test_a_pool_for_two_sessions_serves_six(cluster: Cluster) -> None:
    agents = [Agent(cluster, "decode-1", f"crowd-{k}") for k in range(6)]
    side_by_side(agents, 5)
    turns = [t for a in agents for t in a.turns]
    paths = [t.path for t in turns]
    assert paths.count("seed") == 6 and paths.count("fallback") >= 5 and len(turns) == 30
    refusals = {t.admission["reason"] for t in turns if t.admission and not t.admission["can_admit"]}
    assert refusals and refusals <= {"no_space", "slot_lost"}
    same_as_unified(cluster, turns)
    trims = re.findall(r"Session trim: evicted (\d+) idle sessions, (\d+) tokens freed", cluster.log("decode-1"))
    events = plugin_events(cluster, "decode-1", "trim")
    assert [(len(e["sessions"]), e["freed_tokens"]) for e in events] == [(int(n), int(m)) for n, m in trims] and trims
    lost = [t for t in turns if t.path == "direct" and t.cached < t.history - 1]
    assert not lost, "an admitted slot is kept until its turn is scheduled"
    for agent in agents:
        agent.close()
    nothing_is_held(cluster, "decode-1")
    healthy(cluster, "decode-1")


def test_an_admitted_session_keeps_its_slot_until_its_turn_is_scheduled(cluster: Cluster) -> None:
    kept, idle, others = Agent(cluster, "decode-1", "kept"), Agent(cluster, "decode-1", "idle"), Agent(cluster, "decode-1", "push")
    kept.turn()
    idle.turn()
    assert kept.ask()["can_admit"]
    others.turn(append=280)  # does not fit beside both: the idle one goes, although it was used later
    assert idle.ask()["reason"] == "slot_lost"
    turn = kept.turn(path="direct")
    assert turn.history - 1 <= turn.cached <= turn.history
    again = idle.turn(path="direct", answer=4)  # a session without a slot computes its history again, and does not fail
    assert again.cached < again.history - 1
    same_as_unified(cluster, [turn, again])
    assert [e["session"] for e in plugin_events(cluster, "decode-1", "slot_lost") if e["reason"] == "gone before the turn came"][-1:] == ["idle"]
    for agent in (kept, idle, others):
        agent.close()
    assert held(cluster, "decode-1") == 0


def test_of_two_admissions_for_the_last_tokens_one_wins_where_they_commit(cluster: Cluster) -> None:
    for decode, pool, winners in (("decode-1", POOL_FOR_TWO, 1), ("decode-0", 65536, 2)):
        a, b = (Agent(cluster, decode, f"{name}-{decode}") for name in "ab")
        side_by_side([a, b], 1)
        most = pool - 2 * 110 - 16
        with ThreadPoolExecutor(2) as both:
            answers = list(both.map(lambda agent, n=most: agent.ask(append=n), (a, b)))
        assert [x["can_admit"] for x in answers].count(True) == winners, answers
        time.sleep(EXPIRES_S + 0.5)
        loser = a if not answers[0]["can_admit"] else b
        assert loser.ask(append=most)["can_admit"], "a reservation expires"
        time.sleep(EXPIRES_S + 0.5)
        for agent in (a, b):
            agent.close()
        assert held(cluster, decode) == 0


def test_a_commit_asks_the_scheduler_only_what_its_snapshot_allows(cluster: Cluster) -> None:
    agent = Agent(cluster, "decode-1", "probe")
    agent.turn()
    refused, admitted = agent.ask(append=POOL_FOR_TWO), agent.ask()
    assert (refused["reason"], admitted["reason"]) == ("no_space", "admitted")
    assert ("snapshot_mono" in refused, "snapshot_mono" in admitted) == (True, False)
    told = {e["can_admit"]: e["pid"] for e in plugin_events(cluster, "decode-1", "admission") if e["session"] == "probe"}
    scheduler = plugin_events(cluster, "decode-1", "scheduler_ready")[0]["pid"]
    assert told[True] == scheduler and told[False] not in (scheduler, None), "each answer is an event of the process that gave it"
    agent.close()
    nothing_is_held(cluster, "decode-1")


def test_turns_that_outgrow_the_pool_are_retracted_and_come_back_right(cluster: Cluster) -> None:
    agents = [Agent(cluster, "decode-1", f"grow-{k}") for k in range(2)]
    side_by_side(agents, 1)
    side_by_side(agents, 1, answer=170, path="fallback")
    same_as_unified(cluster, [a.turns[1] for a in agents])
    assert {e["session"] for e in plugin_events(cluster, "decode-1", "retract")} & {a.name for a in agents}
    assert all(a.turn().answer.status_code == 200 for a in agents)
    for agent in agents:
        agent.close()
    nothing_is_held(cluster, "decode-1")
    healthy(cluster, "decode-1")


def test_the_replay_asks_appends_and_writes_its_logs(cluster: Cluster, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", sessions=4, turns=4, prompt=60, append=20, gap_s=0.2)
    chosen = experiment(tmp_path, trace, cluster="one-two", resident=True, backpressure="composite", output_reserve_tokens=16,
                        sglang=cluster.external(["prefill-0"], ["decode-0", "decode-1"]))  # fmt: skip
    out = tmp_path / "run"
    run(chosen, read_trace(trace, chosen), 1, out)
    rows = requests_of(out)
    assert len(rows) == 16 and {r["status"] for r in rows} == {"ok"}, rows
    direct = [r for r in rows if r["path"] == "direct"]
    assert direct and all(r["admission"] == "admitted" and r["slot_lost"] is False and r["bootstrap_room"] is None for r in direct)
    assert {r["admission"] for r in rows if r["path"] == "fallback"} <= {"rejected"}
    asked = [json.loads(line) for line in (out / "structural/admission-events.jsonl").read_text().splitlines()]
    assert len(asked) == 12 and all(a["available_tokens"] > 0 and a["queue_depth"] >= 0 and a["latency_s"] > 0 for a in asked)
    assert any(a["pause_ms"] > 0 for a in asked) == ("sleep_ms" in (out / "structural/backpressure-events.jsonl").read_text())
    bound = [json.loads(line) for line in (out / "structural/session-d-binding.jsonl").read_text().splitlines()]
    assert sorted((b["session"], b["turn_id"]) for b in bound) == [(f"s{k}", 0) for k in range(4)]
    assert held(cluster, "decode-0") == held(cluster, "decode-1") == 0, "the replay closes what it opened"


@pytest.mark.slow
def test_two_hundred_turns_leak_nothing(cluster: Cluster) -> None:
    draw = random.Random(5)
    for decode, rounds in (("decode-0", 20), ("decode-1", 5)):
        for k in range(rounds):
            agents = [Agent(cluster, decode, f"soak-{decode}-{k}-{j}", answer=draw.randrange(1, 20)) for j in range(2)]
            side_by_side(agents, 4)
            assert all(t.answer.status_code == 200 for a in agents for t in a.turns)
            for agent in agents:
                agent.close()
            nothing_is_held(cluster, decode)
    healthy(cluster, "decode-0", "decode-1")


def test_a_send_that_fails_and_the_first_good_one_after_it_are_events(cluster: Cluster) -> None:
    """D stops while pieces of a long prompt are on their way, until P has given up; P's probe then finds D again, and sends go on."""
    decode, seen = cluster.servers.processes["decode-0"], len(cluster.log("prefill-0"))
    with ThreadPoolExecutor(1) as one:
        failing = one.submit(cluster.handed_over, "prefill-0", "decode-0", tokens(31, 16 * CHUNK_TOKENS))
        wait_for("the third piece", lambda: cluster.log("prefill-0")[seen:].count(f"#new-token: {CHUNK_TOKENS},") >= 3)
        os.killpg(decode.pid, signal.SIGSTOP)
        try:
            wait_for("a failed send", lambda: plugin_events(cluster, "prefill-0", "link_failed"))
        finally:
            os.killpg(decode.pid, signal.SIGCONT)
        assert {answer.status_code == 200 for answer in failing.result()} == {False}
    wait_for("the probe", lambda: cluster.handed_over("prefill-0", "decode-0", tokens(32, 40))[1].status_code == 200)
    failed, recovered = (plugin_events(cluster, "prefill-0", kind) for kind in ("link_failed", "link_recovered"))
    assert [e["peer"] for e in recovered] == [failed[0]["peer"]] and failed[0]["took_s"] >= 4 and recovered[0]["mono"] > failed[-1]["mono"]
    assert {e["role"] for e in plugin_events(cluster, "prefill-0", "transfer_failed")} == {"prefill"}
    nothing_is_held(cluster, "decode-0")
    healthy(cluster, "prefill-0", "decode-0")


def test_a_decode_worker_killed_in_an_append_takes_nobody_along(cluster: Cluster) -> None:
    agent = Agent(cluster, "decode-2", "killed")
    agent.turn()
    victim = cluster.servers.processes["decode-2"]
    threading.Timer(0.6, lambda: os.killpg(victim.pid, signal.SIGKILL)).start()
    with pytest.raises(httpx.TransportError):
        agent.turn(append=20000, path="direct")
    other = Agent(cluster, "decode-0", "survivor")
    other.turn()
    same_as_unified(cluster, [other.turn()])
    other.close()
    healthy(cluster, "prefill-0", "decode-0")


def test_a_stopped_prefill_worker_fails_turns_and_not_the_run(cluster: Cluster, tmp_path: Path) -> None:
    """A P that no longer answers, in the middle of a run: every turn ends in time and with a kind, and appends go on without it. A D may be
    held up by asking that P (5 s a time), so a direct turn may be late as well."""
    trace = write_trace(tmp_path / "t.jsonl", sessions=2, turns=3, prompt=60, append=20, gap_s=0.2)
    late = [{"session_id": "late", "timestamp": 15.0 + k, "input_length": 60 + 30 * k, "output_length": 8} for k in range(2)]
    trace.write_text(trace.read_text() + "".join(json.dumps(row) + "\n" for row in late))
    chosen = experiment(tmp_path, trace, cluster="one-one", resident=True, request_timeout_s=15, output_reserve_tokens=16, start_spread_s=0.5,
                        sglang=cluster.external(["prefill-0"], ["decode-0"]))  # fmt: skip
    prefill, out = cluster.servers.processes["prefill-0"], tmp_path / "run"

    def stop_once_somebody_appends() -> None:
        before = len(plugin_events(cluster, "decode-0", "append", wait_s=0))
        wait_for("an append", lambda: len(plugin_events(cluster, "decode-0", "append", wait_s=0)) > before)
        os.killpg(prefill.pid, signal.SIGSTOP)

    stopper = threading.Thread(target=stop_once_somebody_appends)
    stopper.start()
    try:
        began = time.monotonic()
        run(chosen, read_trace(trace, chosen), 1, out)
        took = time.monotonic() - began
    finally:
        stopper.join()
        os.killpg(prefill.pid, signal.SIGCONT)
    rows = requests_of(out)
    assert len(rows) == 8, "every turn has its row"
    failed = [r for r in rows if r["status"] == "error"]
    assert {r["session"] for r in failed} >= {"late"}, rows
    assert failed and {r["error_kind"] for r in failed} <= {"client_timeout", "kv_transfer", "bootstrap_timeout", "aborted"}, failed
    assert {r["error_kind"] for r in failed if r["path"] == "direct"} <= {"client_timeout"}, failed
    assert [r for r in rows if r["path"] == "direct" and r["status"] == "ok"], rows
    assert took < 8 * 15 + 45
    assert "prefill-0" not in cluster.servers.ended()
