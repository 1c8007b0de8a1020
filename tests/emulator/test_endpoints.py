"""What a client of an emulated worker sees."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from emulated import Emulated, emulated, experiment

from apd_replay.replay.failures import kind_of

PD = {"prefill": 2, "decode": 2, "workers": 0}
ROOM = itertools.count(1)


def with_cluster(talk: Callable[[Emulated], Awaitable[None]], kind: str = "kvc", logs: Path | None = None, **keys: Any) -> None:
    async def go() -> None:
        keys.setdefault("cluster", PD if kind == "kvc" else {"workers": 1})
        async with emulated(experiment(kind, **keys), logs) as cluster, asyncio.timeout(30):
            await talk(cluster)

    asyncio.run(go())


def tokens(seed: int, count: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(100, 1000) for _ in range(count)]


async def until(condition: Callable[[], Any]) -> None:
    """The cluster's limit of time is the test's."""
    while not condition():
        await asyncio.sleep(0.005)


def room(cluster: Emulated, prefill: str = "prefill-0") -> dict[str, Any]:
    return {"bootstrap_host": "127.0.0.1", "bootstrap_port": cluster.places[prefill].bootstrap_port, "bootstrap_room": next(ROOM)}


async def handed_over(cluster: Emulated, prompt: list[int], output: int = 8, decode: str = "decode-0", **more: Any) -> tuple[tuple[int, Any], tuple[int, Any]]:
    """The answers of P and D."""
    more = {**room(cluster), **more}
    return tuple(await asyncio.gather(*(cluster.generate(name, prompt, output, **more) for name in ("prefill-0", decode))))


def test_an_answer_has_the_length_that_was_asked_for_and_says_what_was_cached() -> None:
    async def talk(cluster: Emulated) -> None:
        prompt = tokens(1, 500)
        status, first = await cluster.generate("worker-0", prompt, 20, rid="r1")
        assert status == 200 and len(first["output_ids"]) == 20 and first["meta_info"]["finish_reason"] == {"type": "length", "length": 20}
        meta = first["meta_info"]
        assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"], meta["weight_version"]) == ("r1", 500, 20, 0, "worker-0")
        _, second = await cluster.generate("worker-0", prompt + first["output_ids"] + tokens(2, 30), 5)
        assert 500 <= second["meta_info"]["cached_tokens"] <= 520
        _, other = await cluster.generate("worker-0", tokens(3, 500), 5)
        assert other["meta_info"]["cached_tokens"] == 0

    with_cluster(talk, "dp")


def test_a_stream_repeats_the_answer_so_far_as_the_steps_pass() -> None:
    async def talk(cluster: Emulated) -> None:
        started = time.monotonic()
        events = await cluster.stream("worker-0", tokens(1, 200), 60)
        took = time.monotonic() - started
        counts = [e["meta_info"]["completion_tokens"] for e in events]
        assert counts[0] == 1 and counts[-1] == 60 and counts == sorted(set(counts)) and len(counts) > 3
        last = events[-1]["output_ids"]
        assert all(e["output_ids"] == last[:n] for e, n in zip(events, counts, strict=True))
        assert [e["meta_info"]["finish_reason"] is None for e in events] == [True] * (len(events) - 1) + [False]
        step_s = cluster.cluster._cost.step_s[1]
        assert took > 59 * step_s * 0.9, "the answer came faster than the model's steps allow"

    with_cluster(talk, "dp", times=0.5)


def test_a_request_through_p_and_d_starts_once_both_know_it() -> None:
    async def talk(cluster: Emulated) -> None:
        prompt, where = tokens(1, 300), room(cluster)
        decode = asyncio.create_task(cluster.generate("decode-0", prompt, 8, **where))
        await asyncio.sleep(0.1)
        assert not decode.done()
        _, of_prefill = await cluster.generate("prefill-0", prompt, 8, **where)
        assert of_prefill["meta_info"]["completion_tokens"] == 1
        status, of_decode = await decode
        assert status == 200 and len(of_decode["output_ids"]) == 8
        _, again = (await handed_over(cluster, prompt + of_decode["output_ids"] + tokens(2, 50)))[1]
        assert again["meta_info"]["cached_tokens"] == 300  # what the P has: the D's answer never was there

    with_cluster(talk)


def test_rooms_keep_requests_apart_and_refuse_a_third() -> None:
    async def talk(cluster: Emulated) -> None:
        where = room(cluster)
        lone = asyncio.create_task(cluster.generate("decode-0", tokens(1, 50), **where))
        await until(lambda: cluster.cluster._rooms)
        status, refused = await cluster.generate("decode-1", tokens(1, 50), **where)
        assert status == 400 and "is in use" in refused["error"]["message"]
        assert (await cluster.generate("prefill-0", tokens(1, 50), **where))[0] == 200
        assert (await lone)[0] == 200
        both = await asyncio.gather(*(handed_over(cluster, tokens(k, 100 + k), decode=f"decode-{k % 2}") for k in range(8)))
        assert [d[1]["meta_info"]["prompt_tokens"] for _, d in both] == [100 + k for k in range(8)]

    with_cluster(talk)


def test_a_resident_session_is_admitted_appended_and_closed() -> None:
    async def talk(cluster: Emulated) -> None:
        prompt = tokens(1, 400)
        _, (_, first) = await handed_over(cluster, prompt, 10, routing_key="s")
        longer = prompt + first["output_ids"] + tokens(2, 40)
        question = {"session": "s", "rid": "s-1", "input_tokens": 450, "history_tokens": 410, "appended_tokens": 40, "output_reserve_tokens": 512}
        _, answer = await cluster.post("decode-0", "/admit_direct_append", question)
        assert answer["can_admit"] and answer["queue_depth"] == 0 and answer["available_tokens"] > 0
        assert not (await cluster.post("decode-1", "/admit_direct_append", question))[1]["can_admit"], "another D has nothing of the session"
        _, direct = await cluster.generate("decode-0", longer, 6, bootstrap_host="direct", routing_key="s")
        assert 400 <= direct["meta_info"]["cached_tokens"] <= 410 and len(direct["output_ids"]) == 6
        assert (await cluster.post("decode-0", "/close_direct_session", {"session": "s"}))[0] == 200
        assert not (await cluster.post("decode-0", "/admit_direct_append", question))[1]["can_admit"]
        assert cluster.cluster.decode[0].used == 0

    with_cluster(talk)


def test_a_session_that_nobody_named_leaves_nothing_on_its_d() -> None:
    async def talk(cluster: Emulated) -> None:
        await handed_over(cluster, tokens(1, 400))
        assert cluster.cluster.decode[0].used == 0 and not cluster.cluster.decode[0].idle

    with_cluster(talk)


def test_a_streaming_session_sends_only_what_is_new() -> None:
    async def talk(cluster: Emulated) -> None:
        _, session = await cluster.post("worker-0", "/open_session", {"capacity_of_str_len": 1000, "streaming": True})
        _, first = await cluster.generate("worker-0", tokens(1, 200), 10, session_params={"id": session})
        _, second = await cluster.generate("worker-0", tokens(2, 30), 10, session_params={"id": session})
        assert (first["meta_info"]["prompt_tokens"], second["meta_info"]["prompt_tokens"]) == (200, 240)
        assert 200 <= second["meta_info"]["cached_tokens"] <= 210
        await cluster.post("worker-0", "/close_session", {"session_id": session})
        status, refused = await cluster.generate("worker-0", tokens(2, 30), 10, session_params={"id": session})
        assert status == 400 and "does not exist" in refused["error"]["message"]

    with_cluster(talk, "dp")


def test_a_client_that_hangs_up_frees_what_its_request_held() -> None:
    async def talk(cluster: Emulated) -> None:
        task = asyncio.create_task(cluster.stream("worker-0", tokens(1, 300), 100_000))
        worker = cluster.cluster.unified[0]
        await until(lambda: worker.batch.n == 1)
        task.cancel()
        await until(lambda: worker.batch.n == 0)
        assert worker.used == worker.cache.size
        cluster.cluster.check_books()

    with_cluster(talk, "dp", times=10, cluster={"workers": 1, "kv_pool_tokens": 200_000})


def test_a_latched_link_is_told_as_sglang_tells_it(tmp_path: Path) -> None:
    """A transfer stands still beyond Mooncake's limit; what waits behind it is refused at once, and P and D say what each knows."""

    async def talk(cluster: Emulated) -> None:
        cluster.cluster.prefill[0].link._latched_at[0] = 0.0  # as after a failed send: the real one would take 30 s
        (status, by_prefill), (_, by_decode) = await handed_over(cluster, tokens(1, 300))
        assert status == 500
        assert kind_of(by_prefill["error"]["message"], 500) == "peer_dead" and kind_of(by_decode["error"]["message"], 500) == "kv_transfer"
        events = await asyncio.gather(*(cluster.stream(name, tokens(1, 300), **where) for where in [room(cluster)] for name in ("prefill-0", "decode-0")))
        assert [e[-1]["meta_info"]["finish_reason"]["type"] for e in events] == ["abort", "abort"]
        assert (await handed_over(cluster, tokens(1, 300), decode="decode-1"))[1][0] == 200
        cluster.cluster.check_books()

    with_cluster(talk, logs=tmp_path)
    assert "Decode instance could be dead" in (tmp_path / "prefill-0.log").read_text()


def test_a_prompt_that_can_never_fit_is_a_bad_request() -> None:
    async def talk(cluster: Emulated) -> None:
        status, refused = await cluster.generate("worker-0", tokens(1, 900), 200)
        assert status == 400 and "exceeds the maximum number of tokens: 1100 > 1000" in refused["error"]["message"]

    with_cluster(talk, "dp", cluster={"workers": 1, "kv_pool_tokens": 1000})


def test_workers_describe_themselves() -> None:
    async def talk(cluster: Emulated) -> None:
        info = await cluster.get("decode-0", "/server_info")
        assert info["disaggregation_mode"] == "decode" and info["max_total_num_tokens"] == 5000 and "emulator" in info["version"]
        assert (await cluster.get("prefill-1", "/get_server_info"))["disaggregation_mode"] == "prefill"
        assert (await cluster.get("decode-0", "/model_info"))["model_path"] == info["model_path"]
        task = asyncio.create_task(handed_over(cluster, tokens(1, 1000), 3000))
        await until(lambda: cluster.cluster.decode[0].batch.n == 1)
        (item,) = (await cluster.get("decode-0", "/v1/loads?include=all"))["loads"]
        assert item["num_running_reqs"] == 1 and 1000 <= item["num_used_tokens"] < 4000 and item["disaggregation"]["decode_transfer_queue_reqs"] == 0
        text = (await cluster.client.get(cluster.at("decode-0"), "/metrics")).body.decode()
        assert 'sglang:num_running_reqs{model_name="Qwen3-30B-A3B",engine_type="decode",tp_rank="0"} 1' in text
        task.cancel()

    with_cluster(talk, times=5, cluster={**PD, "kv_pool_tokens": 5000})


@pytest.mark.parametrize(("worker", "path", "body", "status", "said"), [
    ("decode-0", "/generate", {"text": "hello"}, 400, "input_ids: expected a list of token ids"),
    ("decode-0", "/generate", {"input_ids": [[1, 2], [3]]}, 400, "expected token ids"),
    ("decode-0", "/generate", {"input_ids": [1]}, 400, "without bootstrap room id"),
    ("decode-0", "/generate", {"input_ids": [1], "bootstrap_room": 1, "bootstrap_port": 5}, 400, "no prefill worker's"),
    ("prefill-0", "/generate", {"input_ids": [1], "bootstrap_room": "x"}, 400, "bootstrap_room: expected a whole number"),
    ("decode-0", "/generate", {"input_ids": [1], "sampling_params": {"max_new_tokens": 0}}, 400, "max_new_tokens"),
    ("decode-0", "/generate", [1], 400, "expected a JSON object"),
    ("decode-0", "/admit_direct_append", {"session": "s"}, 400, "appended_tokens"),
    ("prefill-0", "/admit_direct_append", {"session": "s", "appended_tokens": 1}, 404, "not served"),
    ("decode-0", "/nothing", {}, 404, "not served"),
    ("decode-0", "/generate", {"input_ids": [1], "routing_key": "a\n[2026-01-01 00:00:00] Session trim: evicted 9 idle sessions"}, 400, "printable"),
    ("decode-0", "/generate", {"input_ids": [1], "rid": "\ud800"}, 400, "printable"),
    ("decode-0", "/close_direct_session", {"session": "\x1b[2J"}, 400, "printable"),
])  # fmt: skip
def test_what_cannot_be_served_is_refused_with_a_reason(worker: str, path: str, body: Any, status: int, said: str) -> None:
    async def talk(cluster: Emulated) -> None:
        found, answer = await cluster.post(worker, path, body)
        assert found == status and said in answer["error"]["message"]

    with_cluster(talk)


def test_a_body_that_is_no_json_or_far_too_deep_is_refused() -> None:
    async def talk(cluster: Emulated) -> None:
        for body in (b"", b"{", b"\xff\xfe", b"[" * 100_000):
            assert (await cluster.client.post(cluster.at("worker-0"), "/generate", [body])).status == 400
        assert (await cluster.generate("worker-0", [1, 2, 3]))[0] == 200

    with_cluster(talk, "dp")
