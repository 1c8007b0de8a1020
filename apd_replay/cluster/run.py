"""One run against servers: start them, replay in real time, stop them, and leave a run directory (CONTRACT layout)."""

from __future__ import annotations

import asyncio
import gc
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from apd_replay import __version__
from apd_replay.cluster import external, ready, sglang
from apd_replay.cluster.excerpts import Excerpts
from apd_replay.cluster.servers import Server, Servers
from apd_replay.configuration import Experiment
from apd_replay.replay import environment, loads
from apd_replay.replay.core import ReplayCore, Settings
from apd_replay.replay.http import HttpDriver, HttpSettings, PrefillTarget, ServedBy, Targets
from apd_replay.replay.plan import Plan, plan
from apd_replay.replay.prompts import Prompts
from apd_replay.replay.records import RunWriter
from apd_replay.routing.policies import decode_policy, prefill_policy
from apd_replay.routing.round_robin import RoundRobin
from apd_replay.routing.view import ClusterView, WorkerView
from apd_replay.trace.model import Trace

Launcher = Callable[[Experiment, int], Sequence[Server]]


def run(experiment: Experiment, trace: Trace, replicate: int, out_dir: Path, launcher: Launcher = sglang.servers) -> None:
    """Replay `trace` as `experiment` says into `out_dir`. `launcher` says which servers to start: stock SGLang, or others that speak its API.

    Raises RunError where a server does not come up or the books do not balance; a server that dies during the run is the run's
    finding, not its end. No process is left, however this ends.
    """
    planned = plan(trace, experiment, replicate)
    logs = out_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    outside = experiment["sglang"]["external"]
    started = [] if outside else list(launcher(experiment, replicate))
    targets = external.targets(experiment, outside) if outside else _targets(started)
    versions = {"apd_replay": __version__, "python": sys.version.split()[0]}
    if not outside and launcher is sglang.servers:
        versions |= environment.versions(environment.python())
        if (doubt := environment.warning(versions)) is not None:
            print(f"apd: {doubt}", file=sys.stderr)
    excerpts = None
    if outside:
        if outside.get("flush"):
            external.flush(targets)
        if outside.get("logs"):
            excerpts = Excerpts(Path(outside["logs"]), external.described(targets))
    with Servers(started, logs) if started else nullcontext() as servers:
        if servers is not None and targets.router is not None:
            ready.router_sees(servers, targets.router, len(targets.decode))
        facts = {"trace": trace.name, "trace_digest": trace.digest, "versions": versions,
                 "workers": {s.name: _described(s) for s in started} or external.described(targets)}  # fmt: skip
        gc.collect()
        gc.freeze()  # the trace stays to the end: to walk it again and again would hold turns up, by 50 ms where 10,000 sessions are open
        try:
            asyncio.run(_replay(experiment, trace, planned, replicate, out_dir, targets, servers, excerpts, facts))
        finally:
            gc.unfreeze()
    if experiment["rows"] == "no_logs":
        for log in logs.glob("*.log"):
            log.unlink()


async def _replay(experiment: Experiment, trace: Trace, planned: Plan, replicate: int, out_dir: Path, targets: Targets, servers: Servers | None,
                  excerpts: Excerpts | None, facts: dict[str, Any]) -> None:
    await ready.probe(targets)
    started_ts = time.time()
    with RunWriter(out_dir, started_ts, disaggregated=experiment.disaggregated) as writer:
        served_by = ServedBy(writer) if targets.router else None
        core = _core(experiment, trace, planned, replicate, targets, served_by or writer)
        settings = HttpSettings(experiment["request_timeout_s"], experiment["output_reserve_tokens"], experiment["time_limit_s"], _temperature(experiment))
        prompts = Prompts(trace, replicate, generated=experiment["history"] == "generated")
        driver = HttpDriver(core, targets, prompts, settings, served_by=served_by, lateness=out_dir / "lateness.jsonl")
        polling = _poll_loads(experiment, out_dir, targets, driver, core, started_ts)
        try:
            health = await driver.run()
        finally:
            if polling is not None:
                polling.cancel()
                with suppress(asyncio.CancelledError):
                    await polling
            if excerpts is not None:
                excerpts.take(out_dir)
        duration_s = driver.now()  # not of the clock on the wall, which may be set meanwhile
        core.check_books()
        ended = servers.ended() if servers is not None else {}
        _warn(health, ended)
        writer.finish({
            "experiment": experiment.id, "replicate": replicate, "engine": experiment["engine"], "status": "truncated" if core.truncated else "complete",
            "cluster": experiment["cluster"], "hardware": "cpu" if experiment.cluster["device"] == "cpu" else experiment["hardware"], "policy": experiment["policy"], "time_scale": experiment["time_scale"],
            "concurrency": experiment["concurrency"], "seed": replicate, "model": experiment["sglang"]["model"] or experiment.cluster["model"],
            "started_ts": started_ts, "duration_s": round(duration_s, 6), "requests": writer.rows, "errors": writer.errors, "planned": core.planned,
            "over_context": planned.over_context, "peak_inflight": core.peak_inflight, "client": health, "workers_ended": ended,
            "config": experiment.record(), **facts,
        })  # fmt: skip


def _core(experiment: Experiment, trace: Trace, planned: Plan, replicate: int, targets: Targets, journal: Any) -> ReplayCore:
    name = "decode" if experiment.disaggregated else "worker"
    pool = experiment.cluster["kv_pool_tokens"] or 0
    view = ClusterView([WorkerView(f"{name}-{i}", pool) for i in range(targets.choices)], [WorkerView(f"prefill-{i}") for i in range(len(targets.prefill))])
    block_tokens = next((t.block_size for s in trace.sessions for t in s.turns if t.block_size), None)
    settings = Settings(concurrency=experiment["concurrency"], disaggregated=experiment.disaggregated, resident=experiment["resident"],
                        backpressure=experiment["backpressure"] != "off", come_back=experiment["backpressure"] == "drain", max_pause_s=experiment["max_pause_s"],
                        seed=secrets.randbits(63))  # the seed of the rooms: a room that servers have seen before fails there  # fmt: skip
    chooser = RoundRobin() if targets.router else decode_policy(experiment, block_tokens)  # behind a router there is one way only
    return ReplayCore(planned.sessions, settings, view, chooser, prefill_policy(experiment), journal)


def _targets(servers: Sequence[Server]) -> Targets:
    return Targets(
        decode=tuple(s.address for s in servers if s.role in ("decode", "unified")),
        prefill=tuple(PrefillTarget(s.address, s.address.host, s.bootstrap_port or 0) for s in servers if s.role == "prefill"),
        router=next((s.address for s in servers if s.role == "router"), None),
    )


def _described(server: Server) -> dict[str, Any]:
    return {"role": server.role, "url": server.address.url, "command": list(server.argv),
            **({"bootstrap_port": server.bootstrap_port} if server.bootstrap_port else {})}  # fmt: skip


def _temperature(experiment: Experiment) -> float:
    """Greedy, so that a run can be repeated; but with dummy weights greedy answers are one token over and over, which wakes the same
    few experts of a MoE model every time."""
    told = [*experiment.cluster["server_args"], *experiment["sglang"]["server_args"]]
    return 1.0 if "dummy" in told else 0.0


def _poll_loads(experiment: Experiment, out_dir: Path, targets: Targets, driver: HttpDriver, core: ReplayCore, started_ts: float) -> asyncio.Task[None] | None:
    if experiment["loads_every_s"] is None:
        return None
    name = "decode" if experiment.disaggregated else "worker"
    workers = {f"{name}-{i}": at for i, at in enumerate(targets.decode)}
    numbers = {worker: i for i, worker in enumerate(workers)} if targets.router is None else {}

    def report(worker: str, load: Any) -> None:
        if worker in numbers:
            core.load_reported(numbers[worker], load)

    return asyncio.create_task(loads.poll(experiment["loads_every_s"], workers, driver.now, started_ts, out_dir / "loads.jsonl", report))


def _warn(health: dict[str, Any], ended: dict[str, str]) -> None:
    for reason in health["saturated"]:
        print(f"apd: the client was saturated ({reason}): its times are not the servers'", file=sys.stderr)
    for how in ended.values():
        print(f"apd: during the run {how}", file=sys.stderr)
