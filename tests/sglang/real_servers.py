"""What the tests against real SGLang servers share: small traces, experiments of their own, a cluster for all cases that can share it."""

from __future__ import annotations

import json
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import yaml

from apd_replay import configuration
from apd_replay.cluster import sglang
from apd_replay.cluster.servers import Server, Servers
from apd_replay.configuration import Experiment
from apd_replay.trace import load
from apd_replay.trace.model import Trace

ROOT = Path(__file__).parent.parent.parent
SMALL_POOL_TOKENS = 500  # four prompts of 100 tokens fit, their answers of 120 do not
CHUNK_TOKENS = 512  # of a P: a long prompt is sent in many pieces
TIMEOUT_S = 120.0
_CPU = {"device": "cpu", "model": "tiny-llama", "kv_pool_tokens": 65536, "context_tokens": 32768, "transfer_backend": "mooncake_tcp"}
CLUSTERS: dict[str, dict[str, Any]] = {
    "one": {**_CPU, "workers": 1, "server_args": ["--enable-streaming-session"]},
    "two-two": {**_CPU, "prefill": 2, "decode": 2, "prefill_args": ["--chunked-prefill-size", str(CHUNK_TOKENS)], "environment": {  # shorter than SGLang's own, so that what fails fails within the test
        "MC_TRANSFER_TIMEOUT": "5", "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "60", "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "60"}},
    "one-one": {**_CPU, "prefill": 1, "decode": 1},
    "one-two": {**_CPU, "prefill": 1, "decode": 2},
    "two-one": {**_CPU, "prefill": 2, "decode": 1},
    "one-three": {**_CPU, "prefill": 1, "decode": 3},
}  # fmt: skip


def write_trace(file: Path, sessions: int = 5, turns: int = 4, prompt: int = 120, output: int = 8, append: int = 40, gap_s: float = 1.0) -> Path:
    """Sessions that start 0.7 s apart and grow by `append` tokens a turn."""
    rows = []
    for s in range(sessions):
        t, length = s * 0.7, prompt + 30 * s
        for k in range(turns):
            rows.append({"session_id": f"s{s}", "timestamp": round(t, 3), "input_length": length, "output_length": output + k})
            t, length = t + gap_s, length + output + k + append
    file.write_text("".join(json.dumps(r) + "\n" for r in sorted(rows, key=lambda r: r["timestamp"])), encoding="utf-8")
    return file


def experiment(folder: Path, trace: Path, **settings: Any) -> Experiment:
    """The one experiment of a configuration of its own below `folder`, on real servers unless `settings` say otherwise."""
    config = folder / "config"
    if not config.exists():
        shutil.copytree(ROOT / "config", config)
        for name, shape in CLUSTERS.items():
            (config / "clusters" / f"{name}.yaml").write_text(yaml.safe_dump(shape), encoding="utf-8")
    content = {"engine": "sglang", "cluster": "cpu-1p2d", "policy": "kv_aware", "trace": str(trace), "concurrency": 8, "start_spread_s": 2.0, **settings}
    (config / "experiments" / "one.yaml").write_text(yaml.safe_dump({"experiments": {"x": content}}), encoding="utf-8")
    return next(iter(configuration.load(config / "config.yaml", "one").experiments.values()))


def read_trace(file: Path, chosen: Experiment) -> Trace:
    return load.load(str(file), chosen["trace_format"], file.parent)


def requests_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "requests.jsonl").read_text().splitlines()]


@dataclass
class Cluster:
    """What runs: two P's (the first with Mooncake's probe, the second without), two D's (the second with a tiny pool), a unified worker."""

    servers: Servers
    specs: dict[str, Server]

    def log(self, name: str) -> str:
        return (self.servers.logs / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def generate(self, name: str, tokens: list[int], output: int = 8, **more: Any) -> httpx.Response:
        body = {"input_ids": tokens, "sampling_params": {"max_new_tokens": output, "temperature": 0, "ignore_eos": True}, **more}
        return httpx.post(f"{self.specs[name].address.url}/generate", json=body, timeout=TIMEOUT_S)

    def handed_over(self, prefill: str, decode: str, tokens: list[int], output: int = 8, **more: Any) -> tuple[httpx.Response, httpx.Response]:
        """One request through a P and a D: both answers."""
        room = {"bootstrap_host": "127.0.0.1", "bootstrap_port": self.specs[prefill].bootstrap_port, "bootstrap_room": random.getrandbits(63)}
        with ThreadPoolExecutor(2) as both:
            answers = [both.submit(self.generate, name, tokens, output, **room, **more) for name in (prefill, decode)]
        return answers[0].result(), answers[1].result()

    def external(self, prefill: list[str], decode: list[str]) -> dict[str, Any]:
        """These of its servers as an experiment names servers that somebody else runs."""
        return {"external": {"prefill": [{"url": self.specs[p].address.url, "bootstrap_port": self.specs[p].bootstrap_port} for p in prefill],
                             "decode": [self.specs[d].address.url for d in decode]}}  # fmt: skip


def tokens(seed: int, count: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(100, 1000) for _ in range(count)]


def specs_of_the_cluster(folder: Path) -> list[Server]:
    trace = write_trace(folder / "any.jsonl")
    out = []
    for server in sglang.servers(experiment(folder, trace, cluster="two-two"), 1):
        if server.role == "prefill":
            probe = "1" if server.name == "prefill-0" else "0"
            server = replace(server, environment={**server.environment, "SGLANG_ENABLE_FAILED_SESSION_PROBE": probe})
        if server.name == "decode-1":
            server = replace(server, argv=(*server.argv, "--max-total-tokens", str(SMALL_POOL_TOKENS), "--num-reserved-decode-tokens", "16"))
        out.append(server)
    return out + sglang.servers(experiment(folder, trace, cluster="one", policy="round_robin"), 1)
