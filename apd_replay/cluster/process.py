"""Server processes: each in a process group of its own, its output in a log file, and gone when we are, however we end."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from apd_replay.errors import PLUGIN_SAYS

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
LAST_LINES = 15
KILL_LIMIT_S = 10.0  # SIGKILL takes a moment where much memory is given back


class Warden:
    """Kills the groups it watches if we die without stopping them (warden.py). `close` after they have been stopped."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("warden.py")
        self._child = subprocess.Popen([sys.executable, "-S", "-E", str(script)], stdin=subprocess.PIPE, start_new_session=True, text=True)

    def watch(self, group: int) -> None:
        self._say(f"+{group}")

    def forget(self, group: int) -> None:
        self._say(f"-{group}")

    def _say(self, line: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(line + "\n")
        self._child.stdin.flush()

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()


class Process:
    """A started server. Start from a thread that lives as long as the server may: the kernel ties it to that thread."""

    def __init__(self, name: str, argv: Sequence[str], environment: dict[str, str], log: Path) -> None:
        self.name, self.log = name, log
        parent = os.getpid()

        def tie_to_us() -> None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # we died between fork and prctl
                os._exit(1)

        with open(log, "ab") as output:
            self._child = subprocess.Popen(
                argv, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, preexec_fn=tie_to_us,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Of the server and of its process group."""
        return self._child.pid

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative: ended by that signal."""
        return self._child.poll()

    def _tail(self) -> list[str]:
        with open(self.log, "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 64 * 1024))
            return log.read().decode("utf-8", "replace").splitlines()

    def how_it_ended(self) -> str:
        status = self.exit_status
        if status is None:
            return f"{self.name} runs"
        ending = f"ended with status {status}" if status >= 0 else f"was killed by {signal.Signals(-status).name}"
        lines = self._tail()
        reason = next((f": {line.removeprefix(PLUGIN_SAYS)}" for line in lines if line.startswith(PLUGIN_SAYS)), "")
        return "\n".join([f"{self.name} {ending}{reason}; its last lines ({self.log}):", *lines[-LAST_LINES:]])

    def ask_to_end(self) -> None:
        self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        """The whole group, also where its leader has gone: its children may not have."""
        deadline = time.monotonic() + KILL_LIMIT_S
        while self._signal_group(signal.SIGKILL) and time.monotonic() < deadline:
            self._child.poll()
            time.sleep(0.02)
        self._child.wait()

    def _signal_group(self, number: signal.Signals) -> bool:
        """False where nobody is left in the group."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def stop(processes: Sequence[Process], grace_s: float) -> None:
    """Ask all to end, and kill what is left after `grace_s`."""
    for process in processes:
        process.ask_to_end()
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and any(p.exit_status is None for p in processes):
        time.sleep(0.05)
    for process in processes:
        process.kill()
