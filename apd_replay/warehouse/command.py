"""`apd import`, `apd warehouse`, `apd sql`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

RESULTS = click.option("--results", type=click.Path(path_type=Path, file_okay=False), default=Path("results"), show_default=True, help="Folder of all that is written.")


@click.command("import")
@click.argument("run_dirs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--trace", "trace_file", type=click.Path(path_type=Path, dir_okay=False), help="The trace that the runs replayed: any known format.")
@click.option("--as", "experiment", metavar="ID", help="Experiment id to give them, instead of their own.")
@RESULTS
def import_runs(run_dirs: tuple[Path, ...], trace_file: Path | None, experiment: str | None, results: Path) -> None:
    """Take in RUN_DIRS: run directories (docs/results.md) made elsewhere, checked before anything is written."""
    from apd_replay.warehouse import database, importing

    found = importing.import_runs(list(run_dirs), results, trace_file=trace_file, experiment=experiment, say=lambda text: click.echo(text, err=True))
    database.build(results)
    for run in found:
        click.echo(f"{run.experiment} replicate {run.replicate}: {run.manifest['requests']} requests, {run.manifest['errors']} errors, run {run.run_id}")


@click.command()
@RESULTS
def warehouse(results: Path) -> None:
    """Build apd.duckdb from the runs that the manifests name. `apd claims` puts evidence and verdicts in."""
    from apd_replay.warehouse import database

    click.echo(database.build(results))


@click.command()
@click.argument("query")
@click.option("--format", "form", type=click.Choice(["table", "csv", "json", "parquet"]), default="table", show_default=True, help="Form of the answer.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the answer to this file instead of printing it.")
@RESULTS
def sql(query: str, form: str, out: Path | None, results: Path) -> None:
    """Ask results/apd.duckdb a QUERY, read-only. Tables and columns: docs/results.md."""
    from apd_replay.warehouse import query as asking

    answer = asking.ask(results, query)
    content = asking.render(answer, form)
    if out is not None:
        out.write_bytes(content)
    else:
        sys.stdout.buffer.write(content)
