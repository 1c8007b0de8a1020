"""Logs of servers that outlive a run: it gets how each server started and what it wrote while the run lasted."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from apd_replay.errors import RunError

READY = b"The server is fired up and ready to roll!"
EVENTS = "events"
STARTS = (b'"plugin_active"', b'"scheduler_ready"')


class Excerpts:
    """`folder` has {worker}.log and, of workers with the plugin, events/{worker}.jsonl. The run's part begins where this object is made."""

    def __init__(self, folder: Path, workers: Iterable[str]) -> None:
        self._folder, self._begin = folder, {}
        for worker in workers:
            log = folder / f"{worker}.log"
            if not log.is_file():
                raise RunError(f"{log}: no such file; sglang.external.logs names the folder with a log of each server")
            self._begin[log] = log.stat().st_size
            events = folder / EVENTS / f"{worker}.jsonl"
            if events.is_file():
                self._begin[events] = events.stat().st_size

    def take(self, run_dir: Path) -> None:
        """Write logs/ and events/ of the run directory; its part ends here."""
        for source, begin in self._begin.items():
            in_events = source.parent.name == EVENTS
            target = run_dir / (EVENTS if in_events else "logs") / source.name
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(source, "rb") as whole, open(target, "wb") as part:
                before = whole.read(begin)
                part.write(_starting_events(before) if in_events else _start(before))
                part.write(whole.read())


def _start(before: bytes) -> bytes:
    """Up to the line that says the server is ready: its arguments, its role, its pool."""
    at = before.find(READY)
    return before[: before.find(b"\n", at) + 1] if at >= 0 else b""


def _starting_events(before: bytes) -> bytes:
    return b"".join(line for line in before.splitlines(keepends=True) if any(word in line for word in STARTS))
