"""`apd emulate` as somebody starts it, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from apd_replay.cluster.ports import free_ports

ROOT = Path(__file__).parents[2]


@contextmanager
def emulate(*arguments: str):
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
        try:
            for held in [socket.create_server(("127.0.0.1", port + k)) for k in range(count)]:
                held.close()
        except OSError:
            continue
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


@pytest.mark.sglang
def test_two_workers_behind_the_real_router() -> None:
    from apd_replay.errors import RunError
    from apd_replay.replay import environment

    try:
        interpreter = environment.python()
    except RunError:
        pytest.skip(f"no SGLang on this machine; {environment.SET_UP} sets it up, or {environment.VARIABLE} names its Python")
    port, (router_port, metrics_port) = first_port(2), free_ports(2)
    with emulate("cpu-dp@sglang-tiny-8", "--matrix", "cpu", "--port", str(port)) as workers:
        urls = [workers.stdout.readline().split()[1] for _ in range(2)]
        router = subprocess.Popen([interpreter, "-m", "sglang_router.launch_router", "--worker-urls", *urls, "--policy", "round_robin", "--host", "127.0.0.1",
                                   "--port", str(router_port), "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port),
                                   "--worker-startup-check-interval", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
        try:
            url, deadline = f"http://127.0.0.1:{router_port}", time.monotonic() + 90
            while sum(bool(w.get("is_healthy")) for w in _workers(url)) < 2:
                assert router.poll() is None and time.monotonic() < deadline, "the router does not see its workers"
                time.sleep(0.5)
            prompt, served = [7] * 100, []
            for k in range(4):
                body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 5, "ignore_eos": True}, "rid": f"r{k}"}
                answer = httpx.post(f"{url}/generate", json=body, timeout=30).json()
                served.append(answer["meta_info"]["weight_version"])
                assert len(answer["output_ids"]) == 5
            assert sorted(served) == ["worker-0", "worker-0", "worker-1", "worker-1"]
            with httpx.stream("POST", f"{url}/generate", json={**body, "rid": "s", "stream": True}, timeout=30) as streamed:
                assert [line for line in streamed.iter_lines() if line][-1] == "data: [DONE]"
        finally:
            os.killpg(router.pid, signal.SIGKILL)
            router.wait()


def _workers(url: str) -> list[dict[str, object]]:
    try:
        return httpx.get(f"{url}/workers", timeout=5.0).json().get("workers", [])
    except (httpx.HTTPError, ValueError):
        return []
