"""Logs that belong to no run directory: parsed file by file, on all cores, into one folder of tables."""

from __future__ import annotations

from pathlib import Path

from apd_replay.logs import run, tables
from apd_replay.logs.collect import collect_all
from apd_replay.logs.reading import logs_in_order
from apd_replay.logs.records import table_path


def parse_logs(files: list[Path], out_root: Path, experiment: str, replicate: int, jobs: int | None = None) -> run.Summary:
    """Write the log tables of `files`; the files count as one run, so that routers, P's and D's are compared with each other."""
    logs = collect_all(logs_in_order(files).values(), jobs=jobs)
    key = tables.Key(experiment, replicate, None)
    try:
        clocks = run.clocks_of(logs, [], None, None)
        links = run.links_of(logs, clocks, [])
        tables.write_log_tables(logs, clocks, links, key, lambda name: table_path(out_root, name, experiment, replicate))
    finally:
        for log in logs:
            log.close()
    return run.summary(logs, [])
