"""`apd trace`: look at a trace, or make it the `turns` Parquet that a replay reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from apd_replay.trace.load import load_with_reading
from apd_replay.trace.reading import Reading

NAME = click.argument("name", metavar="FILE")
FORMAT = click.option("--format", "format_name", metavar="NAME", help="The file's format (docs/traces.md); found by content without it.")
LENIENT = click.option("--lenient", is_flag=True, help="Leave rows out that cannot be used, count and name them; without it the first one stops.")
CONFIG_DIR = click.option("--config-dir", type=click.Path(path_type=Path), default=Path("config"), show_default=True,
                          help="Folder whose traces.yaml has the built-in traces.")


@click.group()
def trace() -> None:
    """Look at a trace, or convert it. FILE is a trace file or the name of a built-in trace."""


@trace.command()
@NAME
@FORMAT
@click.option("--json", "as_json", is_flag=True, help="All figures as one JSON object.")
@LENIENT
@CONFIG_DIR
def stats(name: str, format_name: str | None, as_json: bool, lenient: bool, config_dir: Path) -> None:
    """Requests, sessions, gaps, prompts, answers of a trace, and what is odd in it."""
    from apd_replay.trace.statistics import statistics

    found, reading = load_with_reading(name, format_name, config_dir, lenient)
    figures = statistics(found) | {"file": _file_figures(reading)}
    if as_json:
        click.echo(json.dumps(figures, indent=1))
        return
    _notes(reading)
    for key, value in figures.items():
        if key != "file":
            click.echo(f"{key:<21} {_shown(value)}")


@trace.command()
@NAME
@click.argument("out", type=click.Path(path_type=Path))
@FORMAT
@LENIENT
@CONFIG_DIR
def convert(name: str, out: Path, format_name: str | None, lenient: bool, config_dir: Path) -> None:
    """Write the trace as a `turns` Parquet."""
    from apd_replay.trace import table

    found, reading = load_with_reading(name, format_name, config_dir, lenient)
    _notes(reading)
    table.write(found, out)
    click.echo(f"{out}: {found.requests} requests in {len(found.sessions)} sessions")


def _notes(reading: Reading | None) -> None:
    for note in reading.notes() if reading else []:
        click.echo(f"{reading.file if reading else ''}: {note}", err=True)


def _file_figures(reading: Reading | None) -> dict[str, Any] | None:
    """What the file was like, beside what its trace is like; None for a built-in trace and a Parquet."""
    if reading is None or reading.assembly is None:
        return None
    return {
        "format": reading.format, "unit": reading.assembly.unit, "rows": reading.rows, "rejected": reading.rejected,
        "rejected_lines": [r.line for r in reading.rejections], "exact_duplicates": len(reading.exact_duplicates),
        "conflicts": len(reading.conflicts), "numbers_in_quotes": reading.quoted_numbers, "hash_counts": reading.hash_counts,
        "forks": reading.assembly.forks, "orphans": reading.assembly.orphans, "overlaps": reading.assembly.overlaps,
        "notes": reading.notes(),
    }


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{k} {_shown(v)}" for k, v in value.items())
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
