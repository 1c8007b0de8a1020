"""`apd parse`: logs or a run directory become tables, or are explained line by line."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from apd_replay.errors import InputError


@click.command()
@click.argument("logs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--run", "run_dir", type=click.Path(path_type=Path), help="A run directory, or the manifest that names one: write all its tables.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("results/tables"), show_default=True, help="Folder of the tables.")
@click.option("--experiment", help="Experiment id of the rows [default: that of run.json].")
@click.option("--replicate", type=int, help="Replicate of the rows [default: that of run.json].")
@click.option("--explain", is_flag=True, help="Show line by line what was understood; write nothing.")
@click.option("--jobs", type=click.IntRange(1), help="Processes for many logs [default: one a core].")
def parse(logs: tuple[Path, ...], run_dir: Path | None, out: Path, experiment: str | None, replicate: int | None, explain: bool, jobs: int | None) -> None:
    """Turn SGLang worker and router LOGS, or a whole run, into tables."""
    if bool(logs) == (run_dir is not None):
        raise click.UsageError("give either LOGS or --run RUN_DIR")
    if explain:
        from apd_replay.logs.explain import explain_files

        explain_files(_files(list(logs) if logs else [run_dir / "logs"]))  # type: ignore[operator]
        return
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy, which pyarrow loads, would start a thread a core and need none
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # the other pools keep a fifth more memory than they are asked for
    with _lean():
        if run_dir is not None:
            from apd_replay.logs.run import parse_run
            from apd_replay.replay.store import run_directory

            summary = parse_run(run_directory(run_dir), out, experiment, replicate)
        else:
            from apd_replay.logs.corpus import parse_logs

            summary = parse_logs(_files(list(logs)), out, experiment or "logs", 0 if replicate is None else replicate, jobs)
    for notice in summary.notices:
        click.echo(notice, err=True)
    click.echo(f"{summary.files} files, {summary.lines} lines: {summary.unknown} unknown (see unknown_lines), {summary.cut} cut")


def _files(paths: list[Path]) -> list[Path]:
    """The files, and those in the folders."""
    out: list[Path] = []
    for path in paths:
        if path.is_dir():
            out += sorted(p for p in path.glob("**/*") if p.is_file() and not p.name.startswith("."))
        elif path.is_file():
            out.append(path)
        else:
            raise InputError(path, "no such file", remedy="give log files or folders of them")
    return out


class _NoPandas:
    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ImportError("not used here")


@contextmanager
def _lean() -> Iterator[None]:
    """Without pandas, which pyarrow loads, where it is installed, to ask whether a list is one of its series (nearly half of the time that a small
    run takes), and without looking for cycles, of which rows have none."""
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        sys.meta_path.remove(finder)
