"""A cluster whose decode workers carry the plugin, and agent sessions that talk to it as the replay does."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import httpx
from real_servers import CHUNK_TOKENS, TIMEOUT_S, Cluster, experiment, tokens, write_trace

from apd_replay.cluster import sglang
from apd_replay.cluster.servers import Server

POOL_FOR_TWO = 480  # tokens: two of the sessions below at their full length, and a little more
APPEND_CHUNK_TOKENS = 64  # an append of more is computed in pieces
EXPIRES_S = 4.0


def specs(folder: Path) -> list[Server]:
    """One P that gives a send up soon and sends long prompts in many pieces; decode-0 with a large pool answers admissions in its scheduler, decode-1 with a small pool reserves, decode-2 answers from its
    snapshot and retracts something every few steps; and a unified worker to compare with."""
    trace = write_trace(folder / "any.jsonl")
    out = []
    for server in sglang.servers(experiment(folder, trace, cluster="one-three", resident=True, backpressure="composite", sglang={"plugin": True}), 1):
        argv, told = list(server.argv), {"admission_expires_s": EXPIRES_S, "hint": "composite"}
        variables: dict[str, str] = {}
        if server.role == "prefill":
            argv += ["--chunked-prefill-size", str(CHUNK_TOKENS)]
            variables = {"MC_TRANSFER_TIMEOUT": "5", "SGLANG_ENABLE_FAILED_SESSION_PROBE": "1"}
        if server.name == "decode-0":
            argv += ["--chunked-prefill-size", str(APPEND_CHUNK_TOKENS)]
        if server.name == "decode-1":
            argv += ["--max-total-tokens", str(POOL_FOR_TWO), "--num-reserved-decode-tokens", "16"]
            told["admission"] = "commit"
        if server.name == "decode-2":
            told["admission"] = "snapshot"
            variables = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "5"}  # SGLang's own test mode
        out.append(replace(server, argv=tuple(argv), environment={**server.environment, **variables, "APD_SGLANG_PLUGIN": json.dumps(told)}))
    return out + sglang.servers(experiment(folder, trace, cluster="one", policy="round_robin"), 1)


@dataclass
class Turn:
    path: str  # seed, direct, fallback
    prompt: list[int]
    answer: httpx.Response
    history: int
    admission: dict[str, Any] | None = None

    @property
    def output(self) -> list[int]:
        assert self.answer.status_code == 200, self.answer.text
        return list(self.answer.json()["output_ids"])

    @property
    def cached(self) -> int:
        return int(self.answer.json()["meta_info"]["cached_tokens"])


@dataclass
class Agent:
    """One session on one D. `answer`: tokens of each answer."""

    cluster: Cluster
    decode: str
    name: str
    append: int = 20
    answer: int = 8
    history: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def ask(self, append: int | None = None, reserve: int = 16) -> dict[str, Any]:
        question = {"session": self.name, "appended_tokens": append or self.append, "history_tokens": len(self.history), "output_reserve_tokens": reserve}
        answer = call(self.cluster, self.decode, "/admit_direct_append", question)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def turn(self, append: int | None = None, answer: int | None = None, path: str | None = None, **more: Any) -> Turn:
        """The next turn; `path` None: seed first, then as the admission says."""
        admission = None
        if path is None:
            path = "seed"
            if self.turns:
                admission = self.ask(append)
                path = "direct" if admission["can_admit"] else "fallback"
        count = len(self.turns)
        prompt = self.history + tokens(crc32(f"{self.name} {count}".encode()), 100 if count == 0 and append is None else append or self.append)
        named = {"routing_key": self.name, "rid": f"{self.name}-{count}", "return_logprob": True, **more}
        size = answer or self.answer
        if path == "direct":
            response = self.cluster.generate(self.decode, prompt, size, bootstrap_host="direct", **named)
        else:
            _, response = self.cluster.handed_over("prefill-0", self.decode, prompt, size, **named)
        turn = Turn(path, prompt, response, len(self.history), admission)
        self.turns.append(turn)
        if response.status_code == 200:
            self.history = prompt + turn.output
        return turn

    def close(self) -> dict[str, Any]:
        return dict(call(self.cluster, self.decode, "/close_direct_session", {"session": self.name}).json())


def call(cluster: Cluster, server: str, path: str, body: Any) -> httpx.Response:
    return httpx.post(f"{cluster.specs[server].address.url}{path}", json=body, timeout=TIMEOUT_S)


def state(cluster: Cluster, decode: str) -> dict[str, Any]:
    """The D's numbers, as an admission call for an unknown session tells them."""
    found = call(cluster, decode, "/admit_direct_append", {"session": "nobody", "appended_tokens": 1}).json()
    assert found["reason"] == "no_session"
    return dict(found)


def held(cluster: Cluster, decode: str) -> int:
    """KV tokens that the D keeps for sessions."""
    return int(state(cluster, decode)["held_tokens"])


def wait_for(what: str, condition: Any, within_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {within_s:g} s"
        time.sleep(0.05)


def has_pieces(cluster: Cluster, decode: str, rid: str, *, last: bool) -> bool:
    """Is the append of this turn under way (`last`: over)?"""
    return any(e["rid"] == rid and (not last or not e["chunk"]) for e in plugin_events(cluster, decode, "append", wait_s=0))


def used(cluster: Cluster, decode: str) -> float:
    """Share of the pool that is neither free nor cached without a holder, by SGLang's allocator and tree."""
    return float(state(cluster, decode)["token_usage"])


def plugin_events(cluster: Cluster, server: str, *kinds: str, wait_s: float = 0.3) -> list[dict[str, Any]]:
    """What the plugin wrote, once its thread has had the time to."""
    time.sleep(wait_s)
    text = (cluster.servers.logs.parent / "events" / f"{server}.jsonl").read_text()
    rows = map(json.loads, text[: text.rfind("\n") + 1].splitlines())
    return [row for row in rows if row["event"] in kinds]


def side_by_side(agents: list[Agent], turns: int, **more: Any) -> None:
    """All agents at once, each its turns one after the other."""

    def talk(agent: Agent) -> None:
        for _ in range(turns):
            agent.turn(**more)

    with ThreadPoolExecutor(len(agents)) as all_of_them:
        list(all_of_them.map(talk, agents))
