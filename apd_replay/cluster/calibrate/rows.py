"""Measurements, one JSON line each, written as they happen: what a deadline or a crash cuts off is only what was not measured yet.

    machine   gpu, driver, time, command's versions
    server    model, sglang, kv_pool_tokens, max_running_requests, chunk_tokens, layers .. (the model's shape), role
    prefill   new, cached, seconds, repeat          one prompt, wall time at the client until its only token
    decode    batch, context, step_s                one step, context tokens of each request
    call      path, running, status, seconds, repeat    a call answered by an idle server
    calls     path, running, calls_per_s, latencies_s, quiet_step_s, step_s    the same while requests decode, and what it costs them
    transfer  backend, tokens, bytes, seconds, first_s, prefill_s, repeat    KV of one prompt from a P to a D
    scattered the same, into slots that are no neighbours: a run of one token each
    append    new, cached, seconds, repeat          a direct turn on a D, until its first token
    skipped   what, why                             a point that does not fit this server
    failed    what, why                             a point that was tried

All but the first carry `model`, the folder that the server was given.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from apd_replay.errors import InputError

KINDS = ("machine", "server", "prefill", "decode", "call", "calls", "transfer", "scattered", "append", "skipped", "failed")
Row = dict[str, Any]


class Rows:
    """A file of rows; opened for appending, flushed after each."""

    def __init__(self, file: Path) -> None:
        self.model = ""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file.open("a", encoding="utf-8")
        self.counts = dict.fromkeys(KINDS, 0)

    def add(self, kind: str, **values: Any) -> None:
        self._file.write(json.dumps({"kind": kind, **({"model": self.model} if kind != "machine" else {}), **values}) + "\n")
        self._file.flush()
        self.counts[kind] += 1

    def close(self) -> None:
        self._file.close()


def read(files: Iterable[Path]) -> list[Row]:
    """All rows of `files`. A last line without its end, left by a kill, is dropped; anything else unreadable raises InputError."""
    rows = []
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8").split("\n")
        except OSError as error:
            raise InputError(file, f"cannot be read: {error.strerror}") from None
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                row = json.loads(line)
            except ValueError:
                if number == len(lines):
                    continue
                raise InputError(file, "not a JSON line", line=number, remedy="expected a file that `apd calibrate measure` wrote") from None
            if not isinstance(row, dict) or row.get("kind") not in KINDS:
                raise InputError(file, f"not a measurement; kinds: {', '.join(KINDS)}", line=number)
            rows.append(row)
    return rows
