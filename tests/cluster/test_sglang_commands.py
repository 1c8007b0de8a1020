"""The command lines and the environment of an SGLang cluster, without starting it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apd_replay.cluster import external, sglang
from apd_replay.cluster.servers import Server
from apd_replay.configuration import Experiment
from apd_replay.errors import RunError
from apd_replay.replay import environment
from apd_replay.replay.client import Address


@pytest.fixture(autouse=True)
def _an_sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.touch()
    (tmp_path / "venv/tiny-llama").mkdir()
    monkeypatch.setenv(environment.VARIABLE, str(python))


def experiment(cluster: dict[str, Any], **settings: Any) -> Experiment:
    base = {"prefill": 0, "decode": 0, "workers": 0, "device": "cuda", "model": "some/model", "kv_pool_tokens": None, "gpus": None, "server_args": [],
            "prefill_args": [], "decode_args": [], "environment": {}, "transfer_backend": "mooncake", "decode_radix_cache": True}  # fmt: skip
    plain = {"policy": "kv_aware", "cluster": "c", "sglang": {"model": None, "server_args": [], "environment": {}, "external": None, "plugin": False}}
    return Experiment("x", {**plain, **settings}, {**base, **cluster}, {})


def option(server: Server, name: str) -> str | None:
    """The last value of an option, as an argument parser takes it."""
    places = [i for i, a in enumerate(server.argv) if a == name]
    return server.argv[places[-1] + 1] if places else None


def test_prefill_and_decode_workers_get_ports_and_gpus_of_their_own() -> None:
    servers = sglang.servers(experiment({"prefill": 2, "decode": 3, "kv_pool_tokens": 5000}), 7)
    assert [s.name for s in servers] == ["prefill-0", "prefill-1", "decode-0", "decode-1", "decode-2"]
    assert [option(s, "--base-gpu-id") for s in servers] == ["0", "1", "2", "3", "4"]
    ports = [option(s, o) for s in servers for o in ("--port", "--nccl-port")] + [option(s, "--disaggregation-bootstrap-port") for s in servers[:2]]
    assert None not in ports and len(set(ports)) == 12
    assert [option(s, "--disaggregation-mode") for s in servers] == ["prefill"] * 2 + ["decode"] * 3
    assert {option(s, "--disaggregation-transfer-backend") for s in servers} == {"mooncake"}
    assert all(("--disaggregation-decode-enable-radix-cache" in s.argv) == (s.role == "decode") for s in servers)
    assert [option(s, "--max-total-tokens") for s in servers] == [None, None, "5000", "5000", "5000"]
    assert {option(s, "--host") for s in servers} == {"127.0.0.1"} and {option(s, "--random-seed") for s in servers} == {"7"}
    assert servers[0].bootstrap_port == int(option(servers[0], "--disaggregation-bootstrap-port") or 0)


def test_a_router_stands_before_unified_workers_under_cache_aware_only() -> None:
    servers = sglang.servers(experiment({"workers": 2}, policy="cache_aware"), 1)
    assert [s.role for s in servers] == ["unified", "unified", "router"]
    router = servers[-1]
    assert all(s.address.url in router.argv for s in servers[:2])
    assert option(router, "--policy") == "cache_aware" and option(router, "--prometheus-host") == "127.0.0.1"
    assert [s.role for s in sglang.servers(experiment({"workers": 2}, policy="round_robin"), 1)] == ["unified", "unified"]


def test_what_the_configuration_says_comes_last_and_wins() -> None:
    chosen = experiment({"prefill": 1, "decode": 1, "gpus": [5, 3], "server_args": ["--log-level", "warning"], "decode_args": ["--page-size", "64"],
                         "environment": {"A": "cluster", "B": "cluster"}, "transfer_backend": "nixl", "decode_radix_cache": False})  # fmt: skip
    chosen.settings["sglang"] |= {"server_args": ["--page-size", "16"], "environment": {"B": "experiment"}, "model": "other/model"}
    prefill, decode = sglang.servers(chosen, 1)
    assert (option(prefill, "--base-gpu-id"), option(decode, "--base-gpu-id")) == ("5", "3")
    assert option(prefill, "--log-level") == option(decode, "--log-level") == "warning"
    assert (option(prefill, "--page-size"), option(decode, "--page-size")) == ("16", "16") and "64" in decode.argv and "64" not in prefill.argv
    assert (decode.environment["A"], decode.environment["B"]) == ("cluster", "experiment")
    assert option(decode, "--model-path") == "other/model" and "--disaggregation-decode-enable-radix-cache" not in decode.argv
    assert option(decode, "--disaggregation-transfer-backend") == "nixl"


def test_servers_stay_on_the_loopback_interface_unless_a_host_is_given() -> None:
    assert all(s.loopback_only for s in sglang.servers(experiment({"prefill": 1, "decode": 1}), 1))
    assert not sglang.servers(experiment({"workers": 1, "server_args": ["--host", "0.0.0.0"]}, policy="round_robin"), 1)[0].loopback_only


def test_a_machine_without_a_gpu_gets_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "versions", lambda interpreter: {"sglang": "0.5.21"})
    cpu = {"prefill": 1, "decode": 1, "device": "cpu", "model": "tiny-llama"}
    prefill, decode = sglang.servers(experiment(cpu), 1)
    assert option(prefill, "--max-total-tokens") == option(decode, "--max-total-tokens") == str(sglang.CPU_POOL_TOKENS)
    assert option(decode, "--disaggregation-decode-retraction-backup") == "cpu_tensor" and "--base-gpu-id" not in decode.argv
    assert prefill.environment["SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX"] == "0"
    assert option(prefill, "--model-path") == str(tmp_path / "venv/tiny-llama") and prefill.environment["HF_HUB_OFFLINE"] == "1"
    with pytest.raises(RunError, match="no model nowhere"):
        sglang.servers(experiment({**cpu, "model": "nowhere"}), 1)


@pytest.mark.parametrize(("version", "told"), [("0.5.15.post1", False), ("0.5.17", False), ("0.5.18", True), ("0.6.0rc1", True), ("unknown", True)])
def test_an_option_that_a_version_does_not_have_is_left_out(version: str, told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "versions", lambda interpreter: {"sglang": version})
    _, decode = sglang.servers(experiment({"prefill": 1, "decode": 1, "device": "cpu", "model": "tiny-llama"}), 1)
    assert ("--disaggregation-decode-retraction-backup" in decode.argv) is told


def test_gpus_must_fit_the_workers() -> None:
    with pytest.raises(RunError, match="gpus lists 1 GPUs for 2 workers"):
        sglang.servers(experiment({"prefill": 1, "decode": 1, "gpus": [0]}), 1)


def test_a_python_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.VARIABLE, "/no/such/python")
    with pytest.raises(RunError, match="/no/such/python, and there is no such file"):
        sglang.servers(experiment({"workers": 1}), 1)


def test_a_version_that_was_never_tried_warns() -> None:
    assert environment.warning({"sglang": environment.TRIED[0][0]}) is None
    assert "9.9.9 was never run" in (environment.warning({"sglang": "9.9.9"}) or "")


# servers that somebody else runs --------------------------------------------------------------------------------------


def test_external_addresses_become_targets() -> None:
    chosen = experiment({"prefill": 1, "decode": 2})
    found = external.targets(chosen, {"prefill": [{"url": "http://10.0.0.1:30000", "bootstrap_port": 8998}], "decode": ["http://10.0.0.2:1", "10.0.0.3:2"]})
    assert found.decode == (Address("10.0.0.2", 1), Address("10.0.0.3", 2))
    assert (found.prefill[0].bootstrap_host, found.prefill[0].bootstrap_port) == ("10.0.0.1", 8998)
    behind = external.targets(experiment({"workers": 1}), {"workers": ["http://h:1"], "router": "http://h:2"})
    assert behind.router == Address("h", 2) and behind.choices == 1


@pytest.mark.parametrize(("given", "said"), [
    ({"workers": ["http://h:1"]}, "names 0 prefill, cluster c has 1"),
    ({"prefill": [{"url": "http://h:1"}], "decode": ["http://h:2"]}, "has no url and bootstrap_port"),
    ({"prefil": []}, "has prefil"),
    ({"prefill": [{"url": "http://h:1", "bootstrap_port": 1}], "decode": []}, "names 0 decode, cluster c has 1"),
])  # fmt: skip
def test_external_addresses_that_do_not_fit_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(RunError, match=said):
        external.targets(experiment({"prefill": 1, "decode": 1}), given)
