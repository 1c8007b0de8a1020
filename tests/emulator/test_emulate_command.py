"""`apd emulate` as somebody starts it, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from apd_replay.cluster.ports import free_ports
from apd_replay.errors import RunError
from apd_replay.replay import environment

ROOT = Path(__file__).parents[2]


@contextmanager
def emulate(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-m", "apd_replay", "emulate", *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_port(count: int) -> int:
    """The first of `count` free ports in a row."""
    while True:
        (port,) = free_ports(1)
        with ExitStack() as held, suppress(OSError):
            for k in range(count):
                held.enter_context(socket.create_server(("127.0.0.1", port + k)))
            return port


def test_it_says_where_its_workers_are_serves_them_and_ends_when_asked(tmp_path: Path) -> None:
    port = first_port(8)
    with emulate("E6", "--port", str(port), "--logs", str(tmp_path / "logs")) as process:
        lines = [process.stdout.readline().split() for _ in range(8)]
        assert lines == [[f"worker-{k}", f"http://127.0.0.1:{port + k}"] for k in range(8)]
        answer = httpx.post(f"{lines[3][1]}/generate", json={"input_ids": [5] * 40, "sampling_params": {"max_new_tokens": 3}}, timeout=30).json()
        assert len(answer["output_ids"]) == 3 and answer["meta_info"]["weight_version"] == "worker-3"
        listening = {line.split()[1] for line in Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "0A"}
        mine = {a for a in listening if port <= int(a.split(":")[1], 16) < port + 8}
        assert len(mine) == 8 and all(a.startswith("0100007F:") for a in mine), "a worker listens beyond the loopback interface"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        assert process.stderr.read() == ""
    log = (tmp_path / "logs/worker-3.log").read_text()
    assert "The server is fired up and ready to roll!" in log and "Prefill batch, #new-seq: 1, #new-token: 40" in log


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with emulate("E6", "--port", str(port)) as process:
            _, error = process.communicate(timeout=60)
    assert process.returncode == 1 and error.count("\n") == 1 and f"worker-0: cannot listen on 127.0.0.1:{port}" in error


def test_an_unknown_experiment_is_one_line() -> None:
    with emulate("E99") as process:
        _, error = process.communicate(timeout=60)
    assert process.returncode == 1 and error.count("\n") == 1 and "no 'E99'; there are: E0" in error


@contextmanager
def routed(count: int, *workers: str) -> Iterator[str]:
    """The URL of a real router, once it sees `count` healthy workers."""
    try:
        interpreter = environment.python()
    except RunError:
        pytest.skip(f"no SGLang on this machine; {environment.SET_UP} sets it up, or {environment.VARIABLE} names its Python")
    port, metrics_port = free_ports(2)
    router = subprocess.Popen([interpreter, "-m", "sglang_router.launch_router", *workers, "--policy", "round_robin", "--host", "127.0.0.1", "--port", str(port),
                               "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port), "--worker-startup-check-interval", "1"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 90
        while sum(bool(w.get("is_healthy")) for w in _workers(url)) < count:
            assert router.poll() is None and time.monotonic() < deadline, "the router does not see its workers"
            time.sleep(0.5)
        yield url
    finally:
        os.killpg(router.pid, signal.SIGKILL)
        router.wait()


def _workers(url: str) -> list[dict[str, object]]:
    try:
        return httpx.get(f"{url}/workers", timeout=5.0).json().get("workers", [])
    except (httpx.HTTPError, ValueError):
        return []


def _answers(url: str, count: int) -> list[str]:
    """Who served each of `count` requests; one more is streamed."""
    served = []
    for k in range(count):
        body = {"input_ids": [7 + k] * 100, "sampling_params": {"max_new_tokens": 5, "ignore_eos": True}, "rid": f"r{k}"}
        answer = httpx.post(f"{url}/generate", json=body, timeout=30).json()
        assert len(answer["output_ids"]) == 5
        served.append(answer["meta_info"]["weight_version"])
    with httpx.stream("POST", f"{url}/generate", json={**body, "rid": "s", "stream": True}, timeout=30) as streamed:
        assert [line for line in streamed.iter_lines() if line][-1] == "data: [DONE]"
    return served


@pytest.mark.sglang
def test_two_workers_behind_the_real_router() -> None:
    with emulate("cpu-dp@sglang-tiny-8", "--matrix", "cpu", "--port", str(first_port(2))) as workers:
        urls = [workers.stdout.readline().split()[1] for _ in range(2)]
        with routed(2, "--worker-urls", *urls) as url:
            assert sorted(_answers(url, 4)) == ["worker-0", "worker-0", "worker-1", "worker-1"]


@pytest.mark.sglang
def test_prefill_and_decode_behind_the_real_router() -> None:
    with emulate("cpu-pd@sglang-tiny-8", "--matrix", "cpu", "--port", str(first_port(6))) as workers:
        (_, prefill, _, bootstrap_port), *decode = [workers.stdout.readline().split() for _ in range(3)]
        with routed(3, "--pd-disaggregation", "--prefill", prefill, bootstrap_port, "--decode", decode[0][1], "--decode", decode[1][1]) as url:
            assert set(_answers(url, 4)) == {"decode-0", "decode-1"}
