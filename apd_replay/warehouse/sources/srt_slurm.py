"""A log folder of srt-slurm: `{node}_{prefill|decode|agg}_{id}.out` and `.err`, beside each other or under logs/ (read against srt-slurm of 2026-08)."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

from apd_replay.errors import InputError
from apd_replay.warehouse.sources.foreign import ForeignRun

NAME = "srt-slurm log folder"
_LOG = re.compile(r"(?P<node>.+)_(?P<role>prefill|decode|agg)_(?P<id>[A-Za-z0-9-]+)\.(?P<kind>out|err)")
_ROLES = {"prefill": "prefill", "decode": "decode", "agg": "worker"}
_STAMP = re.compile(rb"\[?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)")
_ENDS = 1 << 16  # bytes at each end of a log that are looked at for a date


def logs_of(folder: Path) -> list[tuple[Path, re.Match[str]]]:
    places = [folder, folder / "logs"]
    files = sorted(f for place in places if place.is_dir() for f in place.iterdir() if f.is_file() and not f.is_symlink())
    return [(f, match) for f in files if (match := _LOG.fullmatch(f.name))]


def recognise(folder: Path) -> bool:
    return bool(logs_of(folder))


def read(folder: Path) -> list[ForeignRun]:
    """One run without requests: workers and what their logs say. t = 0 is the first date in any of them, taken as UTC."""
    found = logs_of(folder)
    if not found:
        raise InputError(folder, "has no worker logs", remedy="expected NODE_prefill_ID.out, NODE_decode_ID.err, NODE_agg_ID.out, ...")
    workers: dict[tuple[str, str, str], str] = {}
    counts: dict[str, int] = {}
    logs = {}
    for file, match in found:
        worker = (match["role"], match["node"], match["id"])
        if worker not in workers:
            role = _ROLES[match["role"]]
            workers[worker] = f"{role}-{counts.get(role, 0)}"
            counts[role] = counts.get(role, 0) + 1
        logs[f"{workers[worker]}.{match['kind']}"] = file
    moments = [moment for file in logs.values() for moment in _dates(file)]
    if not moments:
        raise InputError(folder, "its logs have no dates", remedy="expected SGLang's `[YYYY-MM-DD HH:MM:SS ...]` at the head of a line")
    says = ["these are logs only: there are no requests, so latencies, errors of requests, sessions and paths are unknown",
            "the logs' times are taken as UTC, and t = 0 is the first of them"]  # fmt: skip
    return [ForeignRun("srt-slurm", folder, [], says, started_ts=min(moments), duration_s=max(moments) - min(moments),
                       facts={"workers": {name: "_".join((node, role, number)) for (role, node, number), name in workers.items()}}, logs=logs)]  # fmt: skip


def _dates(file: Path) -> list[float]:
    """The first and the last date of a log."""
    with open(file, "rb") as log:
        head = log.read(_ENDS)
        log.seek(max(0, file.stat().st_size - _ENDS))
        tail = log.read(_ENDS)
    stamps = [*_STAMP.findall(head)[:1], *_STAMP.findall(tail)[-1:]]
    found = []
    for stamp in stamps:
        try:
            found.append(datetime.datetime.fromisoformat(stamp.decode()).replace(tzinfo=datetime.UTC).timestamp())
        except ValueError:  # the 31st of February
            continue
    return found
