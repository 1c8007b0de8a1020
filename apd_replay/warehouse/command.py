"""`apd import`, `apd warehouse`, `apd sql`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

RESULTS = click.option("--results", type=click.Path(path_type=Path, file_okay=False), default=Path("results"), show_default=True, help="Folder of all that is written.")


@click.command("import")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--trace", "trace_file", type=click.Path(path_type=Path, dir_okay=False), help="The trace that the runs replayed: any known format.")
@click.option("--as", "experiment", metavar="ID", help="Experiment id to give them, instead of their own; other tools' files need one.")
@click.option("--mapping", type=click.Path(path_type=Path, dir_okay=False), help="YAML that says where a client's lines hold the columns of `requests` (docs/import.md).")
@RESULTS
@click.option("--config", "config_dir", type=click.Path(path_type=Path, file_okay=False), default=Path("config"), show_default=True, help="Folder with claims.yaml, to say what each claim lacks.")
def import_runs(paths: tuple[Path, ...], trace_file: Path | None, experiment: str | None, mapping: Path | None, results: Path, config_dir: Path) -> None:
    """Take in PATHS made elsewhere, checked before anything is written: run directories (docs/results.md), AIPerf's profile_export.jsonl,
    SGLang bench_serving's JSONL, Dynamo's replay report, srt-slurm's log folders, other clients' JSONL with --mapping (docs/import.md)."""
    from apd_replay.warehouse import database, importing, lacking

    found = importing.import_runs(list(paths), results, trace_file=trace_file, experiment=experiment, mapping=mapping, say=lambda text: click.echo(text, err=True))
    database.build(results)
    for run in found:
        click.echo(f"{run.experiment} replicate {run.replicate}: {run.manifest['requests']} requests, {run.manifest['errors']} errors, run {run.run_id}")
    if (config_dir / "claims.yaml").is_file():
        for line in lacking.report(results, dict.fromkeys(run.experiment for run in found), config_dir):
            click.echo(line)


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
