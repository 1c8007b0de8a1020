"""The command lines of a stock SGLang cluster: unified workers behind sglang-router, or P's and D's that the replay joins itself."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from apd_replay.cluster.ports import free_ports
from apd_replay.cluster.servers import Server
from apd_replay.configuration import Experiment
from apd_replay.errors import RunError
from apd_replay.replay import environment
from apd_replay.replay.client import Address

HOST = "127.0.0.1"
READY = "The server is fired up and ready to roll!"
ROUTED = "cache_aware"  # the policy that is the router's own; every other one is the replay's
CPU_POOL_TOKENS = 65536  # without a limit SGLang takes all memory that there is

# Every server. Tokens go in and out, so no tokenizer; TZ and milliseconds make the lines of all logs comparable.
_ARGUMENTS = ("--skip-tokenizer-init", "--grammar-backend", "none", "--enable-metrics", "--enable-cache-report", "--log-level", "info")
_ENVIRONMENT = {"TZ": "UTC", "SGLANG_LOG_MS": "1", "SGLANG_HOST_IP": HOST, "PYTHONUNBUFFERED": "1"}

# SGLang without CUDA. Two of its paths ask for CUDA where they need not: a P that sends its cached prefix early, and a D that
# backs retracted requests up in pinned memory. A scheduler without work would take a whole core. Half precision, its default even
# for a float32 model, gains nothing without AMX and blurs what a test compares.
_CPU_ARGUMENTS = ("--device", "cpu", "--dtype", "float32", "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--sleep-on-idle")
_CPU_DECODE = ("--disaggregation-decode-retraction-backup", "cpu_tensor")
_CPU_DECODE_SINCE = (0, 5, 18)  # earlier versions have no such option, and back up in plain memory
_CPU_ENVIRONMENT = {"SGLANG_USE_CPU_ENGINE": "1", "SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": "0"}


def servers(experiment: Experiment, replicate: int) -> list[Server]:
    """What `experiment` asks for, on ports that are free now, nothing started. Raises RunError."""
    cluster = experiment.cluster
    roles = ["prefill"] * cluster["prefill"] + ["decode"] * cluster["decode"] or ["unified"] * cluster["workers"]
    gpus = _gpus(cluster, len(roles))
    ports = iter(free_ports(3 * len(roles) + 2))
    interpreter = environment.python()
    model = _model(experiment, interpreter)
    variables = {**os.environ, **_ENVIRONMENT, **(_CPU_ENVIRONMENT if cluster["device"] == "cpu" else {}), **_offline(model),
                 **cluster["environment"], **experiment["sglang"]["environment"], **_plugins(experiment)}  # fmt: skip
    decode_only = _CPU_DECODE if "decode" in roles and cluster["device"] == "cpu" and _release(interpreter) >= _CPU_DECODE_SINCE else ()
    out, counts = [], {"prefill": 0, "decode": 0, "unified": 0}
    for role, gpu in zip(roles, gpus, strict=True):
        name = f"{'worker' if role == 'unified' else role}-{counts[role]}"
        counts[role] += 1
        port, rendezvous, bootstrap = next(ports), next(ports), next(ports)
        own = [*_ARGUMENTS, "--host", HOST, "--port", str(port), "--nccl-port", str(rendezvous), "--random-seed", str(replicate), "--weight-version", name]
        own += _CPU_ARGUMENTS if cluster["device"] == "cpu" else ("--base-gpu-id", str(gpu))
        own += _role_arguments(cluster, role, bootstrap)
        own += decode_only if role == "decode" else ()
        told = [*cluster["server_args"], *cluster.get(f"{role}_args", []), *experiment["sglang"]["server_args"]]
        out.append(Server(
            name, role, (interpreter, "-m", "sglang.launch_server", "--model-path", model, *own, *told), variables, Address(HOST, port), READY,
            bootstrap if role == "prefill" else None, loopback_only="--host" not in told,
        ))  # fmt: skip
    if roles[0] == "unified" and experiment["policy"] == ROUTED:
        out.append(_router(interpreter, variables, [s.address for s in out], next(ports), next(ports)))
    return out


def _role_arguments(cluster: dict[str, Any], role: str, bootstrap_port: int) -> list[str]:
    out: list[str] = []
    pool = cluster["kv_pool_tokens"] if role != "prefill" else None
    if pool is None and cluster["device"] == "cpu":
        pool = CPU_POOL_TOKENS
    if pool is not None:
        out += ["--max-total-tokens", str(pool)]
    if role != "unified":
        out += ["--disaggregation-mode", role, "--disaggregation-transfer-backend", cluster["transfer_backend"]]
    if role == "prefill":
        out += ["--disaggregation-bootstrap-port", str(bootstrap_port)]
    if role == "decode":
        out += ["--disaggregation-decode-enable-radix-cache"] if cluster["decode_radix_cache"] else []
    return out


def _release(interpreter: str) -> tuple[int, ...]:
    """SGLang's version as three numbers; one that cannot be read counts as new."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", environment.versions(interpreter).get("sglang", ""))
    return tuple(int(n) for n in found.groups()) if found else _CPU_DECODE_SINCE


def _router(interpreter: str, variables: dict[str, str], workers: list[Address], port: int, metrics_port: int) -> Server:
    argv = (interpreter, "-m", "sglang_router.launch_router", "--worker-urls", *(w.url for w in workers), "--policy", ROUTED,
            "--host", HOST, "--port", str(port), "--prometheus-host", HOST, "--prometheus-port", str(metrics_port),
            "--worker-startup-check-interval", "1")  # fmt: skip
    return Server("router", "router", argv, variables, Address(HOST, port))


def _gpus(cluster: dict[str, Any], count: int) -> list[int]:
    if cluster["gpus"] is None:
        return list(range(count))
    if len(cluster["gpus"]) != count:
        raise RunError(f"gpus lists {len(cluster['gpus'])} GPUs for {count} workers; give one for each, prefill first")
    return list(cluster["gpus"])


def _model(experiment: Experiment, interpreter: str) -> str:
    """A path as it is, a folder beside the interpreter's environment (the tiny model), or a name that SGLang looks up itself."""
    named = experiment["sglang"]["model"] or experiment.cluster["model"]
    beside = Path(interpreter).parent.parent / named
    if beside.is_dir() and not Path(named).is_dir():
        return str(beside)
    if experiment.cluster["device"] == "cpu" and not Path(named).is_dir():
        raise RunError(f"no model {named}: neither a folder nor in {beside.parent}; {environment.SET_UP} makes the tiny one")
    return str(named)


def _offline(model: str) -> dict[str, str]:
    """A model that lies on disk needs no hub, and nothing should wait for one."""
    return {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"} if Path(model).is_dir() else {}


def _plugins(experiment: Experiment) -> dict[str, str]:
    """SGLang loads every plugin that is installed: name the ones that this run wants, none included (sglang_plugin/settings.py has the second)."""
    if not experiment["sglang"]["plugin"]:
        return {"SGLANG_PLUGINS": "none"}
    told = {"admission": experiment["admission"], "eviction": experiment["eviction"], "hint": experiment["backpressure"],
            "overshoot_per_usage": experiment["overshoot_per_usage"]}  # fmt: skip
    return {"SGLANG_PLUGINS": "apd_replay", "APD_SGLANG_PLUGIN": json.dumps(told)}
