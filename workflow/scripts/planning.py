"""What the workflow has to do, from the configuration and from what already lies in results/: names only, nothing is run.

Executed at every start of Snakemake, on cluster nodes too: no trace is read and nothing is hashed but small texts.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import job_needs

from apd_replay.configuration import ANALYSIS_KEYS, Configuration, Experiment, load, syntheses
from apd_replay.errors import ConfigError
from apd_replay.replay.identity import cell
from apd_replay.replay.store import manifest_file
from apd_replay.schemas import TABLES

RUN_TABLES = [table.name for table in TABLES.values() if table.per_run]
GPU_ENGINES = ("sglang",)
MATRICES = ("smoke",)
"""Lists of experiments with a target of their own, beside the configured one."""


def run_jobs_with_this_python() -> None:
    """`python` in a job is the one that runs Snakemake, also where its environment is not activated."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


@dataclass(frozen=True)
class Run:
    """One replicate to be replayed. `cell` is the digest of what decides it, but for the trace."""

    experiment: Experiment
    replicate: int
    cell: str
    trace: str

    def call(self, file: Path, matrix: str, overrides: str) -> str:
        """`apd replay` and its arguments, quoted for the shell; on GPUs of its own where it uses any."""
        gpus = job_needs.gpus(self.experiment)
        lease = ["python", "workflow/scripts/gpu_lease.py", str(gpus), "--"] if gpus else []
        wanted = [self.experiment.id, "--replicate", str(self.replicate), "--expect", self.cell, "--config", str(file), "--matrix", matrix]
        return f"{shlex.join([*lease, 'python', '-m', 'apd_replay', 'replay', *wanted])} {overrides}".rstrip()

    def reading(self) -> str:
        """The settings that the analysis takes from the run's manifest: a change rewrites the manifest and replays nothing."""
        return json.dumps({key: self.experiment[key] for key in sorted(ANALYSIS_KEYS - {"replicates"})}, sort_keys=True)


@dataclass(frozen=True)
class TraceSource:
    """A trace file, or the name of a built-in synthesis with its parameters."""

    source: str
    format: str | None
    synthesis: str | None

    @property
    def files(self) -> list[str]:
        return [] if self.synthesis else [self.source]

    def call(self) -> str:
        return shlex.join([self.source, *(["--format", self.format] if self.format else [])])


class Plan:
    """`runs`: what rule replay makes, by name (`E0/r3`). `matrices`: names of each list's runs. `kept`: runs that lie in
    results/ and that no rule makes: imported ones, those of other configurations, and runs on GPUs, which nothing but
    deleting their manifest makes again. `retired`: replicates that a configured experiment no longer asks for."""

    def __init__(self, file: Path, overrides: dict[str, Any]) -> None:
        self.file, self.given = file, overrides
        self.overrides = shlex.join([part for key, value in sorted(overrides.items()) for part in ("--set", f"{key}={json.dumps(value)}")])
        chosen = load(file, overrides=overrides)
        self.directory, self.settings = chosen.directory, chosen.settings
        self.results = Path(chosen.settings["results"])
        self.runs: dict[str, Run] = {}
        self.calls: dict[str, str] = {}
        self.traces: dict[str, TraceSource] = {}
        self.matrices = {"report": self._add(chosen, chosen.settings["matrix"])}
        for name in MATRICES:
            if (file.parent / "experiments" / f"{name}.yaml").is_file():
                self.matrices[name] = self._add(load(file, name, overrides), name)
        lying = sorted(f"{f.parent.name}/{f.stem}" for f in (self.results / "runs").glob("*/r*.json"))
        others = [name for name in lying if name not in self.runs]
        simulated = {run.experiment.id for run in self.runs.values() if run.experiment["engine"] not in GPU_ENGINES}
        for name in lying:
            if name.rpartition("/r")[0] in simulated:
                self._refuse_imported(name)
        self.retired = [name for name in others if name.rpartition("/r")[0] in simulated]
        self.kept = [name for name in others if name not in self.retired]

    def gpus(self, name: str) -> int:
        return job_needs.gpus(self.runs[name].experiment)

    def memory_mb(self, name: str) -> int:
        return job_needs.memory_mb(self.runs[name].experiment)

    def least_s(self, name: str) -> float:
        """Seconds that the replay takes at least (job_needs.least_s). Reads the trace."""
        run = self.runs[name]
        if run.experiment["engine"] == "sim":
            return 0.0
        source = self.traces[run.trace]
        return job_needs.least_s(run.experiment, job_needs.read_trace(source.source, source.format, self.file.parent), run.replicate)

    def minutes(self, name: str) -> int:
        """Run time that the replay's job asks for."""
        return job_needs.minutes(self.runs[name].experiment, self.least_s(name))

    def forecast(self, name: str, limit: float | None) -> str | None:
        """A line that says how long the replay takes; None for a simulated one. `limit`: minutes that its job may run, where that
        was given from outside. Raises ConfigError where it cannot end in that time."""
        run = self.runs[name]
        if run.experiment["engine"] == "sim":
            return None
        least, gpus = self.least_s(name), job_needs.gpus(run.experiment)
        allowed = self.minutes(name) if limit is None else limit
        takes = f"{name}: takes at least {job_needs.spoken(least)} (trace {run.trace}, gaps / {run.experiment.gap_scale:g}), its job may run {job_needs.spoken(60 * allowed)}"
        if least > 60 * allowed:
            raise ConfigError(self.file, f"experiments.{run.experiment.id}", f"{takes}; cut it (time_limit_s, gap_cap_s, first_turns) or give its job longer "
                              "(--set-resources replay:runtime=MINUTES)")  # fmt: skip
        return f"{takes}, {gpus} GPUs" if gpus else takes

    @property
    def reported(self) -> list[str]:
        """The runs that the report is about."""
        chosen = self.matrices["report"]
        return chosen + [name for name in self.kept if name not in chosen]

    @property
    def reported_traces(self) -> list[str]:
        """The traces of those runs that this configuration replays; an imported run brought its own."""
        return sorted({self.runs[name].trace for name in self.reported if name in self.runs})

    def listed(self, matrix: str) -> list[str]:
        """Runs of config/experiments/{matrix}.yaml."""
        if matrix not in self.matrices:
            raise ConfigError(self.file.parent / "experiments" / f"{matrix}.yaml", "(file)", "no such list of experiments")
        return self.matrices[matrix]

    def retire(self) -> None:
        """Delete the manifests of retired replicates, so that no verdict counts them. The runs stay in the store."""
        for name in self.retired:
            file = self.results / "runs" / f"{name}.json"
            file.unlink(missing_ok=True)
            print(f"note: {file} is more than `replicates` asks for and leaves the report; its run stays in {self.results}/store", file=sys.stderr)

    def manifests(self, names: list[str]) -> list[str]:
        return [f"{self.results}/runs/{name}.json" for name in names]

    def tables(self, names: list[str]) -> list[str]:
        """All per-run tables of runs; names may be patterns."""
        return [f"{self.results}/tables/{table}/experiment={experiment}/replicate={replicate}/part-0.parquet"
                for experiment, _, replicate in (name.rpartition("/r") for name in names) for table in RUN_TABLES]

    def _add(self, configuration: Configuration, matrix: str) -> list[str]:
        names = []
        for experiment in configuration.experiments.values():
            trace = self._trace(configuration, experiment)
            for replicate in range(1, experiment["replicates"] + 1):
                name = f"{experiment.id}/r{replicate}"
                names.append(name)
                run = Run(experiment, replicate, cell(experiment, replicate), trace)
                if experiment["engine"] in GPU_ENGINES and self._there(run):
                    continue
                if name in self.runs and self.runs[name].cell != run.cell:
                    raise ConfigError(self.file, f"matrix {matrix}", f"experiment {experiment.id} is another one in this list than in the configured matrix; rename it")
                self.runs.setdefault(name, run)
                self.calls.setdefault(name, run.call(self.file, matrix, self.overrides))
        return names

    def _there(self, run: Run) -> bool:
        file = manifest_file(self.results, run.experiment.id, run.replicate)
        if not file.is_file():
            return False
        made_by = json.loads(file.read_text(encoding="utf-8")).get("cell")
        if made_by != run.cell:
            print(f"note: {file} was made by another configuration or revision and is kept; delete it to run {run.experiment.id} again", file=sys.stderr)
        return True

    def _refuse_imported(self, name: str) -> None:
        """A replay under the id of an imported run (its manifest names no `cell`) would take its place."""
        file = self.results / "runs" / f"{name}.json"
        if "cell" not in json.loads(file.read_text(encoding="utf-8")):
            raise ConfigError(file, "experiment", "is an imported run of an experiment that is also to be replayed; import it under another id (--as ID), "
                              "or set `results` to another folder")  # fmt: skip

    def _trace(self, configuration: Configuration, experiment: Experiment) -> str:
        source = experiment["trace"]
        name = Path(source).name.split(".")[0]
        built_in = syntheses(configuration.directory)
        is_file = Path(source).is_file()  # a file of that name goes before a built-in trace
        if not is_file and source not in built_in:
            raise ConfigError(self.file, "trace", f"there is no file {source}, nor a built-in trace of that name; built in: {', '.join(built_in)}")
        synthesis = None if is_file else json.dumps(built_in[source], sort_keys=True)
        found = self.traces.setdefault(name, TraceSource(source, experiment["trace_format"], synthesis))
        if found.source != source:
            raise ConfigError(self.file, "trace", f"{found.source} and {source} would both be called {name}; rename one")
        return name
