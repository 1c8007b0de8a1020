"""`apd report` and `apd trace-events`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--results", type=click.Path(file_okay=False, path_type=Path), default=Path("results"), show_default=True, help="The results folder."
)
@click.option(
    "--config",
    "config_dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("config"),
    show_default=True,
    help="Folder with claims.yaml.",
)
def report(results: Path, config_dir: Path) -> None:
    """Write RESULTS/report: report.html (one file, opens offline), report.md, figures/*.svg."""
    from apd_replay.report.page import write
    from apd_replay.report.sections import build
    from apd_replay.report.source import Source

    with Source(results, config_dir) as source:
        pages = build(source)
    write(pages, results / "report")
    click.echo(results / "report" / "report.html")


@click.command("trace-events")
@click.argument("run_dir", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="File to write; default: RUN_DIR's name with .trace.json, here.",
)
def trace_events(run_dir: Path, out: Path | None) -> None:
    """Write a run as Chrome trace JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing open. RUN_DIR: a run directory, or the
    manifest of a run, such as results/runs/E0/r1.json.

    Requests are slices on their worker and on their session, KV usage is a counter, trims, retractions and errors are instants.
    """
    from apd_replay.replay.store import run_directory
    from apd_replay.report.trace_events import write

    directory = run_directory(run_dir)
    target = out or Path(f"{directory.resolve().name}.trace.json")
    count = write(directory, target)
    click.echo(f"{target}: {count:,} events")
