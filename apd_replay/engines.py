"""Who serves a run: the one place that knows all engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import yaml

from apd_replay import configuration
from apd_replay.configuration import Experiment
from apd_replay.errors import ConfigError
from apd_replay.replay import identity, store
from apd_replay.trace.model import Trace


def run(experiment: Experiment, trace: Trace, replicate: int, out_dir: Path) -> None:
    """Write the run directory of one replicate; run.json is written last. Raises RunError, ConfigError."""
    out_dir.mkdir(parents=True, exist_ok=True)
    if experiment["engine"] == "sim":
        from apd_replay.sim import driver

        driver.run(experiment, trace, replicate, out_dir)
    elif experiment["engine"] == "emulator":
        from apd_replay.cluster import run as servers
        from apd_replay.emulator import launch

        servers.run(experiment, trace, replicate, out_dir, launcher=lambda chosen, seed: launch.servers(chosen, seed, out_dir / "logs"))
    else:
        from apd_replay.cluster import run as servers

        servers.run(experiment, trace, replicate, out_dir)


def run_into_store(experiment: Experiment, trace: Trace, replicate: int, results: Path, expected: str | None = None) -> bool:
    """The replicate's run is in results/store and its manifest names it; False: it was in the store already.

    `expected` is the digest the run was planned with (replay/identity.py); RunError if something was edited since.
    """
    name = identity.run_id(experiment, replicate, trace.digest, expected=expected)
    with store.adding(results, name) as directory:
        if directory is not None:
            run(experiment, trace, replicate, directory)
    facts = {"trace": trace.name, "config": experiment.record(), "cell": identity.cell(experiment, replicate)}
    store.write_manifest(results, experiment.id, replicate, name, **facts)
    return directory is not None


@click.command()
@click.argument("experiment")
@click.option("--replicate", type=click.IntRange(min=1), required=True, help="Number of the replicate; also its seed.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="The run directory to write; must be absent or empty.")
@click.option("--results", type=click.Path(path_type=Path, file_okay=False), help="Instead of --out: keep the run in this folder's store, named under runs/; one that is there is not made again.")
@click.option("--config", type=click.Path(path_type=Path), default=Path("config/config.yaml"), show_default=True, help="The configuration.")
@click.option("--matrix", default=None, help="File of config/experiments, without its ending; default: the configuration's.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="A key of the configuration for this call only.")
@click.option("--trace", type=click.Path(path_type=Path), default=None, help="Turns as a Parquet table; default: the experiment's trace.")
@click.option("--expect", metavar="DIGEST", help="With --results: what the run was planned with; refuse if configuration or code revision are others now.")
def replay(experiment: str, replicate: int, out: Path | None, results: Path | None, config: Path, matrix: str | None, overrides: tuple[str, ...],
           trace: Path | None, expect: str | None) -> None:
    """Run one replicate of EXPERIMENT into a run directory, or into the store of a results folder."""
    if (out is None) == (results is None):
        raise click.UsageError("give either --out or --results")
    settings = configuration.load(config, matrix, overrides_of(overrides))
    chosen = settings.experiment(experiment)
    if out is not None and out.exists() and any(out.iterdir()):
        raise ConfigError("--out", str(out), "is not empty; a run is never written over another")
    from apd_replay.trace import load, table

    turns = table.read(trace) if trace is not None else load.load(chosen["trace"], chosen["trace_format"], settings.directory)
    if out is not None:
        run(chosen, turns, replicate, out)
    elif results is not None:
        made = run_into_store(chosen, turns, replicate, results, expect)
        click.echo(f"{chosen.id} r{replicate}: {'run' if made else 'in the store already'}")


def overrides_of(pairs: tuple[str, ...]) -> dict[str, Any]:
    out = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"--set {pair}: expected KEY=VALUE")
        out[key] = yaml.safe_load(value)
    return out
