"""A worker's events as JSON lines, written by a thread of its own so that the scheduler never waits for a disk.

Each line: `event`, `mono` (time.monotonic, seconds), `ts` (UTC epoch, seconds), `pid`, and the event's own fields.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import sys
import threading
import time
from typing import Any

FLUSH_LIMIT_S = 2.0

_Event = tuple[float, float, str, dict[str, Any]]


class Events:
    """`path` None: every event is dropped. Several processes of one server may share a file: each line is one append."""

    def __init__(self, path: str | None) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if path else None
        self._queue: queue.SimpleQueue[_Event | None] = queue.SimpleQueue()
        self._pid = os.getpid()
        if self._file is not None:
            self._thread = threading.Thread(target=self._write, name="apd-events", daemon=True)
            self._thread.start()
            atexit.register(self.close)

    def record(self, event: str, **fields: Any) -> None:
        """Costs a tuple and a queue; the rest happens in the thread."""
        if self._file is not None:
            self._queue.put((time.monotonic(), time.time(), event, fields))

    def close(self) -> None:
        """Write what is still queued. A killed process loses at most what its thread had not yet taken."""
        if self._file is not None and self._thread.is_alive():
            self._queue.put(None)
            self._thread.join(FLUSH_LIMIT_S)

    def _write(self) -> None:
        file = self._file
        assert file is not None
        while True:
            lines, last = [], False
            taken = self._queue.get()
            while taken is not None:
                lines.append(self._line(taken))
                if self._queue.empty():
                    break
                taken = self._queue.get()
            else:
                last = True
            try:
                for line in lines:
                    os.write(file, line)
            except OSError as error:  # a full disk must neither end the worker nor fill its memory
                print(f"apd_replay events: none from here on: {error}", file=sys.stderr, flush=True)
                last = True
            if last:
                self._file = None
                os.close(file)
                return

    def _line(self, taken: _Event) -> bytes:
        mono, ts, event, fields = taken
        row = {"event": event, "mono": round(mono, 6), "ts": round(ts, 6), "pid": self._pid, **fields}
        return json.dumps(row, default=str).encode() + b"\n"
