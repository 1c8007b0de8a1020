"""A cluster's servers: started together, waited for, stopped together."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from apd_replay.cluster.process import Process, Warden, stop
from apd_replay.errors import RunError
from apd_replay.replay.client import Address

GRACE_S = 5.0
START_LIMIT_S = 900.0  # a large model reads its weights from a slow disk for minutes; a server that dies is noticed at once


@dataclass(frozen=True)
class Server:
    """What is needed to start one server. `role`: `prefill`, `decode`, `unified` or `router`; `marker`: the log line of a server that is ready;
    no `argv`: the process of another one serves it too."""

    name: str
    role: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    address: Address
    marker: str | None = None
    bootstrap_port: int | None = None
    loopback_only: bool = True


@dataclass
class Servers:
    """Context manager: on leaving, whatever the reason, no process is left. `logs`: folder of {name}.log files."""

    servers: Sequence[Server]
    logs: Path
    start_limit_s: float = START_LIMIT_S
    processes: dict[str, Process] = field(default_factory=dict)

    def __enter__(self) -> Servers:
        self._scratch = tempfile.TemporaryDirectory(prefix="apd-")
        self._warden = Warden()
        try:
            self._start([s for s in self.servers if s.role != "router"])
            self._start([s for s in self.servers if s.role == "router"])
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        stop(list(self.processes.values()), GRACE_S)
        for process in self.processes.values():
            self._warden.forget(process.pid)
        self._warden.close()
        self._scratch.cleanup()

    def check(self) -> None:
        """Raises RunError with the last lines of a server that has ended."""
        for process in self.processes.values():
            if process.exit_status is not None:
                raise RunError(process.how_it_ended())

    def ended(self) -> dict[str, str]:
        """The servers that have ended by themselves, and how."""
        return {name: p.how_it_ended() for name, p in self.processes.items() if p.exit_status is not None}

    def wait_for(self, what: str, ready: Callable[[], bool]) -> None:
        """Poll until `ready`, watching that every server lives. Raises RunError."""
        deadline = time.monotonic() + self.start_limit_s
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise RunError(f"{what} after {self.start_limit_s:g} s; logs in {self.logs}")
            time.sleep(0.1)

    def _start(self, servers: Sequence[Server]) -> None:
        for server in servers:
            if not server.argv:
                continue
            environment = dict(server.environment)
            if environment.get("APD_SGLANG_PLUGIN") and server.role != "router":  # what its plugin sees goes beside the logs, not among them
                (self.logs.parent / "events").mkdir(exist_ok=True)
                environment["APD_SGLANG_EVENTS"] = str((self.logs.parent / "events" / f"{server.name}.jsonl").absolute())
            if server.loopback_only and (shield := self._loopback_library()) is not None:
                environment["LD_PRELOAD"] = ":".join(filter(None, [str(shield), environment.get("LD_PRELOAD", "")]))
            process = Process(server.name, server.argv, environment, self.logs / f"{server.name}.log")
            self._warden.watch(process.pid)
            self.processes[server.name] = process
        waiting = {s.name: s.marker for s in servers if s.marker is not None}
        read = dict.fromkeys(waiting, 0)

        def ready() -> bool:
            for name, marker in list(waiting.items()):
                with open(self.processes[name].log, "rb") as log:
                    log.seek(read[name])
                    new = log.read()
                if marker.encode() in new:
                    del waiting[name]
                else:
                    read[name] += max(0, len(new) - len(marker))  # the marker may be half written
            return not waiting

        self.wait_for("servers not ready", ready)

    def _loopback_library(self) -> Path | None:
        """The library that keeps servers off the network's interfaces, built where there is a C compiler (loopback.c says why)."""
        library = Path(self._scratch.name) / "loopback.so"
        if not library.exists():
            source = Path(__file__).with_name("loopback.c")
            try:
                subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError):
                print("apd: no C compiler, so torch's and Mooncake's own ports listen on every interface of this machine", file=sys.stderr)
                return None
        return library
