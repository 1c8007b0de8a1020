"""`apd emulate`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click


@click.command()
@click.argument("experiment")
@click.option("--port", type=click.IntRange(min=1024, max=65000), default=30000, show_default=True, help="The first worker's port; the others follow.")
@click.option("--logs", type=click.Path(path_type=Path, file_okay=False), help="Folder for the workers' logs; none are written without it.")
@click.option("--replicate", type=click.IntRange(min=1), default=1, show_default=True, help="The seed of the service times.")
@click.option("--config", type=click.Path(path_type=Path), default=Path("config/config.yaml"), show_default=True, help="The configuration.")
@click.option("--matrix", default=None, help="File of config/experiments, without its ending; default: the configuration's.")
def emulate(experiment: str, port: int, logs: Path | None, replicate: int, config: Path, matrix: str | None) -> None:
    """Serve the cluster of EXPERIMENT: simulated workers behind SGLang's HTTP API, in real time, until Ctrl-C.

    Times are those of the experiment's hardware file; answers are random tokens.
    """
    from apd_replay import configuration
    from apd_replay.emulator.serve import serve
    from apd_replay.emulator.spec import Spec, places

    chosen = configuration.load(config, matrix).experiment(experiment)
    count = chosen.cluster["prefill"] + chosen.cluster["decode"] + chosen.cluster["workers"]
    ports = [n for k in range(count) for n in (port + k, port + count + k)]
    spec = Spec(chosen, replicate, places(chosen, ports), logs)

    def ready() -> None:
        for place in spec.places:
            click.echo(f"{place.name:<10} {place.url}" + (f"  bootstrap_port {place.bootstrap_port}" if place.bootstrap_port else ""))

    asyncio.run(serve(spec, ready))
