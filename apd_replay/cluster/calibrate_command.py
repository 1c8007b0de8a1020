"""`apd calibrate`: a GPU's coefficients for the simulator, measured on running servers."""

from __future__ import annotations

import asyncio
import platform
import random
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from apd_replay.cluster.calibrate.pair import Pair
    from apd_replay.cluster.calibrate.rows import Rows
    from apd_replay.cluster.calibrate.worker import Server
    from apd_replay.replay.client import Client

SEED = 7


@click.group()
def calibrate() -> None:
    """Measure running SGLang servers and fit a file of config/hardware (docs/gpu.md)."""


raw = click.option("--raw", type=click.Path(dir_okay=False, path_type=Path), required=True, help="File of measurements, JSON lines; appended to as they happen.")
deadline = click.option("--deadline-s", type=float, default=540, show_default=True, help="Stop after so many seconds and keep what there is.")


@calibrate.command()
@click.option("--server", required=True, metavar="URL", help="A unified worker that nobody else uses.")
@raw
@deadline
def worker(server: str, raw: Path, deadline_s: float) -> None:
    """Prefill, append, decode step and calls on one worker."""

    async def measure(client: Client, rows: Rows) -> None:
        from apd_replay.cluster.calibrate import points
        from apd_replay.cluster.calibrate.worker import Worker

        found = await _server(client, rows, server)
        meter = Worker(client, found, rows, SEED, _say)
        await meter.warm_up()
        for point in points.plan():
            await meter.measure(point)

    _measured(raw, deadline_s, measure)


backend = click.option("--backend", type=click.Choice(["mooncake", "mooncake_tcp", "nixl"]), required=True, help="The transfer backend of both.")


def pair(command: Callable[..., None]) -> Callable[..., None]:
    """The options that name a P and a D."""
    for option in (
        click.option("--bootstrap-port", type=int, required=True, help="The P's --disaggregation-bootstrap-port."),
        click.option("--decode", required=True, metavar="URL", help="The D."),
        click.option("--prefill", required=True, metavar="URL", help="The P; needs --enable-metrics."),
    ):
        command = option(command)
    return command


@calibrate.command()
@pair
@backend
@raw
@deadline
def link(prefill: str, decode: str, bootstrap_port: int, backend: str, raw: Path, deadline_s: float) -> None:
    """KV transfer from a P to a D, straight to both, without a router."""

    from apd_replay.cluster.calibrate import link as links

    _measured_pair(prefill, decode, bootstrap_port, raw, deadline_s, lambda client, pair, rows: links.measure(client, pair, backend, rows, SEED, _say))


@calibrate.command()
@pair
@raw
@deadline
def calls(prefill: str, decode: str, bootstrap_port: int, raw: Path, deadline_s: float) -> None:
    """Calls to a D, idle and while requests decode there: the plugin's admission where the D has it."""

    from apd_replay.cluster.calibrate.calls import measure_on_decode

    _measured_pair(prefill, decode, bootstrap_port, raw, deadline_s, lambda client, pair, rows: measure_on_decode(client, pair, rows, SEED, _say))


@calibrate.command()
@pair
@raw
@deadline
def append(prefill: str, decode: str, bootstrap_port: int, raw: Path, deadline_s: float) -> None:
    """Direct appends on a D with the plugin."""

    from apd_replay.cluster.calibrate import append as appends

    _measured_pair(prefill, decode, bootstrap_port, raw, deadline_s, lambda client, pair, rows: appends.measure(client, pair, rows, SEED, _say))


@calibrate.command()
@pair
@backend
@raw
@deadline
def scattered(prefill: str, decode: str, bootstrap_port: int, backend: str, raw: Path, deadline_s: float) -> None:
    """KV transfer into a D whose free slots lie scattered; the D needs the plugin."""

    from apd_replay.cluster.calibrate import scattered as transfers

    _measured_pair(prefill, decode, bootstrap_port, raw, deadline_s, lambda client, pair, rows: transfers.measure(client, pair, backend, rows, SEED, _say))


@calibrate.command()
@click.argument("raws", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The file, config/hardware/NAME.yaml.")
@click.option("--gpu", help="The GPU's name; default: as its machine said.")
@click.option("--title", required=True, help="Model and number format, as the file names them: `Qwen3-30B-A3B bf16`.")
@click.option("--model", help="Folder name of the model, where the measurements are of several.")
@click.option("--base", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A hardware file from which comes what was not measured.")
def fit(raws: tuple[Path, ...], out: Path, gpu: str | None, title: str, model: str | None, base: Path | None) -> None:
    """Fit a hardware file to measurements (files of any number of sessions)."""
    from apd_replay.cluster.calibrate import fit as fits
    from apd_replay.cluster.calibrate import hardware_file, rows

    found = fits.fit(rows.read(raws), model)
    content = hardware_file.read_base(base) if base else None
    text = hardware_file.render(found, gpu or found.machine.get("gpu") or "unknown GPU", title, content, base.name if base else "")
    hardware_file.write(out, text)
    click.echo(text, nl=False)


def _measured_pair(prefill: str, decode: str, bootstrap_port: int, raw: Path, deadline_s: float, measure: Callable[[Client, Pair, Rows], Awaitable[None]]) -> None:
    from apd_replay.cluster.calibrate.pair import Pair

    async def on_pair(client: Client, rows: Rows) -> None:
        ends = Pair(await _server(client, rows, prefill), await _server(client, rows, decode), bootstrap_port, random.SystemRandom())
        await measure(client, ends, rows)

    _measured(raw, deadline_s, on_pair)


async def _server(client: Client, rows: Rows, url: str) -> Server:
    from apd_replay.cluster.calibrate.worker import inspect
    from apd_replay.replay.client import Address

    found = await inspect(client, Address.of(url))
    rows.model = found.model
    rows.add("server", **found.facts)
    return found


def _measured(raw: Path, deadline_s: float, measure: Callable[[Client, Rows], Awaitable[None]]) -> None:
    """Run `measure` until it ends or the deadline comes; then say what there is."""
    from apd_replay.cluster.calibrate.rows import Rows
    from apd_replay.replay.client import Client

    rows = Rows(raw)
    rows.add("machine", **_machine())

    async def run() -> None:
        client = Client()
        try:
            async with asyncio.timeout(deadline_s):
                await measure(client, rows)
        except TimeoutError:
            _say(f"stopped at the deadline of {deadline_s:g} s")
        finally:
            client.close()

    try:
        asyncio.run(run())
    finally:
        rows.close()
        _say(f"{raw}: " + ", ".join(f"{count} {kind}" for kind, count in rows.counts.items() if count))


def _machine() -> dict[str, Any]:
    """The GPU and its driver, where there is one."""
    facts: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "time": time.time(), "python": platform.python_version()}
    try:
        answer = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True, timeout=30)
        names = [line.split(", ") for line in answer.stdout.splitlines() if ", " in line]
    except (OSError, subprocess.TimeoutExpired):
        names = []
    if names:
        facts |= {"gpu": names[0][0], "gpus": len(names), "driver": names[0][1]}
    return facts


def _say(text: str) -> None:
    click.echo(f"[{time.strftime('%H:%M:%S')}] {text}")
