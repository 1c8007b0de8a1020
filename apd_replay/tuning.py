"""`apd tune`: search the policies for one trace and one number of GPUs, in the simulator.

Seeded random search with successive halving: many configurations on one seed, the better part on more, a few on all. The space is a few discrete
settings and a run costs half a second, so that no library for it is a dependency; none was tried against this.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import click
import yaml

from apd_replay import configuration, engines
from apd_replay.configuration import Experiment
from apd_replay.trace.model import Trace

SPACE: dict[str, tuple[Any, ...]] = {
    "policy": ("kv_aware", "capacity_aware"),
    "migration": (False, True),
    "eviction": ("idle_lru", "tiered"),
    "admission": ("coupled", "snapshot", "commit"),
    "prefill_policy": ("round_robin", "link_aware"),
    "backpressure": ("off", "linear", "composite", "drain"),
    "max_pause_s": (2.0, 10.0, 30.0, 60.0, 120.0),
    "output_reserve_tokens": (128, 512, 2048),
    "chunk_scale": (0.25, 0.5, 1.0),
}
"""What is searched beside the split of the GPUs into P and D. `chunk_scale` multiplies the prompt tokens of one prefill batch."""

FIRST_SEED = 1001  # replicates of a report start at 1: what is chosen here is judged there on seeds it has not seen
ROUNDS = ((1.0, 1), (0.4, 3), (0.15, 5))  # (share of the configurations, seeds) of each round


@dataclass
class Candidate:
    """`figures`: one row of claims/cell_figures a seed."""

    settings: dict[str, Any]
    figures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def errors(self) -> float:
        return fmean(row["errors"] for row in self.figures)

    @property
    def ttft_p99_s(self) -> float:
        """Of the response: from the time a turn was due; a failed turn counts as infinite."""
        return fmean(row["response_ttft_p99"] for row in self.figures)

    @property
    def throughput(self) -> float:
        """Answer tokens a second."""
        return fmean(row["throughput"] for row in self.figures)

    def rank(self) -> tuple[float, float]:
        """Fewest errors, then the best P99 TTFT for its throughput: a ratio of the one is worth the same ratio of the other."""
        return self.errors, math.log(self.ttft_p99_s) - math.log(self.throughput)

    def beats(self, other: Candidate) -> bool:
        mine, theirs = (self.ttft_p99_s, -self.throughput), (other.ttft_p99_s, -other.throughput)
        return mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))




def search(clusters: Sequence[str], count: int, seed: int, measure: Callable[[list[tuple[dict[str, Any], int]]], list[dict[str, Any]]]) -> list[Candidate]:
    """The configurations that reached the last round, best first. `measure` takes (settings, seed) pairs, all of a round at once."""
    space = {"cluster": tuple(clusters), **SPACE}
    random = Random(f"tune:{seed}")
    drawn: dict[tuple[Any, ...], Candidate] = {}
    most = math.prod(map(len, space.values()))
    while len(drawn) < min(count, most):
        settings = {key: random.choice(values) for key, values in space.items()}
        drawn.setdefault(tuple(settings.values()), Candidate(settings))
    left = list(drawn.values())
    for share, seeds in ROUNDS:
        left = sorted(left, key=Candidate.rank)[: max(3, round(share * count))] if left[0].figures else left
        todo = [(c, n) for c in left for n in range(len(c.figures), seeds)]
        for (candidate, _), row in zip(todo, measure([(c.settings, FIRST_SEED + n) for c, n in todo]), strict=True):
            candidate.figures.append(row)
    return sorted(left, key=Candidate.rank)


def front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that no other beats in P99 TTFT and throughput both."""
    return sorted((c for c in candidates if not any(other.beats(c) for other in candidates)), key=lambda c: c.ttft_p99_s)


def measured(base: Experiment, directory: Path, trace: Trace, todo: tuple[dict[str, Any], int]) -> dict[str, Any]:
    """Figures of one simulated run."""
    from apd_replay.claims import cell_figures

    settings, seed = todo
    chosen = configuration.changed(base, experiment_settings(settings), directory)
    with tempfile.TemporaryDirectory() as out:
        engines.run(chosen, trace, seed, Path(out))
        return cell_figures.measure(chosen, {seed: Path(out)}).to_pylist()[0]


def experiment_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as an experiment has them."""
    out = {key: value for key, value in settings.items() if key != "chunk_scale"}
    return {**out, "rows": "no_logs", "hardware_scale": {"chunk_tokens": settings["chunk_scale"]} if settings["chunk_scale"] != 1.0 else {}}


@click.command()
@click.argument("experiment", default="E0")
@click.option("--against", default="E6", show_default=True, help="An experiment that the written list compares the choice with.")
@click.option("--config", type=click.Path(path_type=Path), default=Path("config/config.yaml"), show_default=True, help="The configuration.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="A key of the configuration for this call only, such as trace=FILE.")
@click.option("--count", type=click.IntRange(min=3), default=64, show_default=True, help="Configurations to draw.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the drawing.")
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True, help="Processes.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("config/experiments/tuned.yaml"), show_default=True, help="The list of experiments to write.")
def tune(experiment: str, against: str, config: Path, overrides: tuple[str, ...], count: int, seed: int, jobs: int, out: Path) -> None:
    """Search the policies for EXPERIMENT's trace, load and number of GPUs; `snakemake report --config matrix=tuned` then reports the choice.

    Prints the Pareto front of P99 TTFT (of the response) against throughput, by the simulator.
    """
    loaded = configuration.load(config, None, engines.overrides_of(overrides))
    base, other = loaded.experiment(experiment), loaded.experiment(against)
    from apd_replay.trace import load

    trace = load.load(base["trace"], base["trace_format"], loaded.directory)
    clusters = configuration.splits(loaded.directory, base.cluster["prefill"] + base.cluster["decode"])
    with ProcessPoolExecutor(jobs) as pool:
        task = partial(measured, base, loaded.directory, trace)
        found = search(clusters, count, seed, lambda todo: list(pool.map(task, todo)))
    pareto = front(found)
    text = [f"{'P99 TTFT s':>10} {'tokens/s':>9} {'errors':>7}  (engine sim, mean of {len(found[0].figures)} seeds from {FIRST_SEED})"]
    text += [f"{c.ttft_p99_s:10.2f} {c.throughput:9.1f} {c.errors:7.1f}  {', '.join(f'{k}: {v}' for k, v in c.settings.items())}" for c in pareto]
    click.echo("\n".join(text))
    best = found[0]
    _write(out, (base, other), best, ["Written by `apd tune`: the choice `tuned`, and the front it was chosen from.", *text])
    click.echo(f"chosen: {', '.join(f'{k}: {v}' for k, v in best.settings.items())}\nwritten: {out}")


def _write(out: Path, compared: tuple[Experiment, Experiment], best: Candidate, comment: list[str]) -> None:
    plain = {experiment.base: _own(experiment) for experiment in compared}
    plain["tuned"] = {**_own(compared[0]), **experiment_settings(best.settings), "rows": compared[0]["rows"], "title": "chosen by apd tune"}
    body = yaml.safe_dump({"experiments": plain}, sort_keys=False)
    draft = out.with_name(f".{out.name}")
    draft.write_text("".join(f"# {line}\n" for line in comment) + body, encoding="utf-8")
    draft.replace(out)


def _own(experiment: Experiment) -> dict[str, Any]:
    """The settings, without what is empty anyway."""
    return {key: value for key, value in experiment.settings.items() if value not in (None, "", [], {}) and key not in ("sglang", "mechanisms")}
