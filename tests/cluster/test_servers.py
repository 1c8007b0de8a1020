"""Starting and stopping: nothing is left behind, whatever happens, and a server that dies says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from apd_replay.cluster.ports import free_ports
from apd_replay.cluster.servers import Server, Servers
from apd_replay.errors import RunError
from apd_replay.replay.client import Address

WORKER = Path(__file__).with_name("fake_worker.py")
MARKER = "The server is fired up and ready to roll!"


def server(mode: str, name: str = "decode-0", **more: bool) -> Server:
    port = free_ports(1)[0]
    return Server(name, "decode", (sys.executable, str(WORKER), str(port), mode), dict(os.environ), Address("127.0.0.1", port), MARKER, **more)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pids(logs: Path, servers: Servers) -> list[int]:
    """The servers and their children."""
    children = [int(line.split()[1]) for log in logs.glob("*.log") for line in log.read_text().splitlines() if line.startswith("child ")]
    return [p.pid for p in servers.processes.values()] + children


def eventually(condition: Callable[[], bool], within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize("mode", ["ready", "deaf"])
def test_all_processes_are_gone_after_success(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apd_replay.cluster.servers.GRACE_S", 0.3)
    with Servers([server(mode), server(mode, "decode-1")], tmp_path) as servers:
        there = pids(tmp_path, servers)
        assert len(there) == 4 and all(map(alive, there))
    assert eventually(lambda: not any(map(alive, there)))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_all_processes_are_gone_after_a_failure_and_after_control_c(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), Servers([server("ready")], tmp_path) as servers:
        there = pids(tmp_path, servers)
        raise error
    assert eventually(lambda: not any(map(alive, there)))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_all_processes_are_gone_after_the_replay_was_killed(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); from pathlib import Path; import test_servers as t\n"
        "with t.Servers([t.server('ready'), t.server('ready', 'decode-1')], Path(sys.argv[2])) as s:\n"
        "    print(*t.pids(Path(sys.argv[2]), s), flush=True); time.sleep(600)"
    )
    replay = subprocess.Popen([sys.executable, "-c", code, str(WORKER.parent), str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert replay.stdout is not None
    there = list(map(int, replay.stdout.readline().split()))
    assert len(there) == 4 and all(map(alive, there))
    replay.send_signal(number)
    replay.wait(20)
    replay.stdout.close()
    assert eventually(lambda: not any(map(alive, there)))


def test_a_server_that_dies_on_start_says_its_last_lines_and_takes_the_others_along(tmp_path: Path) -> None:
    servers = Servers([server("ready"), server("die", "decode-1")], tmp_path)
    with pytest.raises(RunError, match=r"decode-1 ended with status 3.*\n.*loading\nout of cheese"), servers:
        pass
    assert eventually(lambda: not any(map(alive, pids(tmp_path, servers))))


def test_why_the_plugin_ended_a_server_is_said_first(tmp_path: Path) -> None:
    """SGLang's own tracebacks come after it, and are longer than what is quoted."""
    with pytest.raises(RunError, match=r"decode-0 ended with status 1: no such hook; its last lines .*\n  traceback 25\n"), Servers([server("refuse")], tmp_path):
        pass


def test_a_server_that_dies_later_is_noticed(tmp_path: Path) -> None:
    with Servers([server("ready")], tmp_path) as servers:
        servers.check()
        os.kill(servers.processes["decode-0"].pid, signal.SIGKILL)
        assert eventually(lambda: bool(servers.ended()))
        with pytest.raises(RunError, match="decode-0 was killed by SIGKILL"):
            servers.check()


def test_a_server_that_is_never_ready_ends_the_wait(tmp_path: Path) -> None:
    silent = Server("decode-0", "decode", (sys.executable, "-c", "import time; time.sleep(600)"), dict(os.environ), Address("127.0.0.1", 1), MARKER)
    with pytest.raises(RunError, match=r"servers not ready after 0.3 s"), Servers([silent], tmp_path, start_limit_s=0.3):
        pass


def listening(port: int) -> str:
    """Local address of the listening IPv4 socket on `port`, as /proc/net/tcp prints it."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return next(r[1].split(":")[0] for r in rows if r[3] == "0A" and int(r[1].split(":")[1], 16) == port)


def test_a_server_that_binds_every_interface_gets_the_loopback_one_unless_told(tmp_path: Path) -> None:
    shy, open_ = server("wild"), server("wild", "decode-1", loopback_only=False)
    with Servers([shy, open_], tmp_path):
        assert listening(shy.address.port) == "0100007F"
        assert listening(open_.address.port) == "00000000"


def test_the_kernel_gives_different_ports() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50 and all(p > 1023 for p in ports)
