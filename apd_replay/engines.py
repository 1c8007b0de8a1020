"""Who serves a run: the one place that knows all engines."""

from __future__ import annotations

from pathlib import Path

import click

from apd_replay import configuration
from apd_replay.configuration import Experiment
from apd_replay.errors import ConfigError
from apd_replay.trace.model import Trace


def run(experiment: Experiment, trace: Trace, replicate: int, out_dir: Path) -> None:
    """Write the run directory of one replicate; run.json is written last. Raises RunError, ConfigError."""
    out_dir.mkdir(parents=True, exist_ok=True)
    if experiment["engine"] == "sim":
        from apd_replay.sim import driver

        driver.run(experiment, trace, replicate, out_dir)
    else:
        from apd_replay.cluster import run as servers

        servers.run(experiment, trace, replicate, out_dir)


@click.command()
@click.argument("experiment")
@click.option("--replicate", type=click.IntRange(min=1), required=True, help="Number of the replicate; also its seed.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="The run directory to write; must be absent or empty.")
@click.option("--config", type=click.Path(path_type=Path), default=Path("config/config.yaml"), show_default=True, help="The configuration.")
@click.option("--matrix", default=None, help="File of config/experiments, without its ending; default: the configuration's.")
@click.option("--trace", type=click.Path(path_type=Path), default=None, help="Turns as a Parquet table; default: the experiment's trace.")
def replay(experiment: str, replicate: int, out: Path, config: Path, matrix: str | None, trace: Path | None) -> None:
    """Run one replicate of EXPERIMENT into a run directory."""
    settings = configuration.load(config, matrix)
    chosen = settings.experiments.get(experiment)
    if chosen is None:
        raise ConfigError(config, "experiments", f"no {experiment!r}; there are: {', '.join(settings.experiments)}")
    if out.exists() and any(out.iterdir()):
        raise ConfigError("--out", str(out), "is not empty; a run is never written over another")
    from apd_replay.trace import load, table

    turns = table.read(trace) if trace is not None else load.load(chosen["trace"], chosen["trace_format"], settings.directory)
    run(chosen, turns, replicate, out)
