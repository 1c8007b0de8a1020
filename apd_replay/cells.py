"""`apd cell`: all replicates of one experiment in one process, and its figures. A grid has hundreds of cells; a job each, not a job a run."""

from __future__ import annotations

from pathlib import Path

import click

from apd_replay import configuration, engines
from apd_replay.errors import ConfigError


@click.command()
@click.argument("experiment")
@click.option("--results", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder of the grid: store/, tables/, figures/.")
@click.option("--config", type=click.Path(path_type=Path), default=Path("config/config.yaml"), show_default=True, help="The configuration.")
@click.option("--matrix", default="remedies", show_default=True, help="File of config/experiments, without its ending.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="A key of the configuration for this call only.")
@click.option("--trace", type=click.Path(path_type=Path), default=None, help="Turns as a Parquet table; default: the experiment's trace.")
def cell(experiment: str, results: Path, config: Path, matrix: str, overrides: tuple[str, ...], trace: Path | None) -> None:
    """Run every replicate of EXPERIMENT that is not in the store yet, and write figures/EXPERIMENT.parquet.

    Runs with worker logs (`rows: all`) are parsed and named by manifests, so that claims can be decided on them. The others leave their rows in
    grid/store, and only their figures here.
    """
    settings = configuration.load(config, matrix, engines.overrides_of(overrides))
    chosen = settings.experiments.get(experiment)
    if chosen is None:
        raise ConfigError(config, "experiments", f"no {experiment!r} in {matrix}")
    from apd_replay.claims import cell_figures
    from apd_replay.logs.run import parse_run
    from apd_replay.replay import store
    from apd_replay.trace import load, table

    turns = table.read(trace) if trace is not None else load.load(chosen["trace"], chosen["trace_format"], settings.directory)
    place = results if chosen["rows"] == "all" else results / "grid"
    runs = {}
    for replicate in range(1, chosen["replicates"] + 1):
        engines.run_into_store(chosen, turns, replicate, place)
        runs[replicate] = store.run_directory(store.manifest_file(place, chosen.id, replicate))
        if chosen["rows"] == "all":
            parse_run(runs[replicate], results / "tables", chosen.id, replicate)
    cell_figures.write(cell_figures.measure(chosen, runs), results / "figures" / f"{chosen.id}.parquet")
    click.echo(f"{chosen.id}: {len(runs)} runs")
