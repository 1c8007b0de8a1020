"""The cells of `snakemake remedies`: one experiment each, all its replicates in one job. Loaded only where that target is asked for."""

from __future__ import annotations

import hashlib
import shlex
import sys
from functools import cached_property
from pathlib import Path

from planning import Plan

from apd_replay.configuration import Experiment, load, syntheses
from apd_replay.replay.identity import cell


class Cells:
    """`results` holds what the target writes; it is a results folder of its own, so that the report of the matrix never counts its runs."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.results = plan.results / "remedies"

    @cached_property
    def found(self) -> dict[str, Experiment]:
        """The experiments whose traces are there; which are left out is said."""
        matrix = self._plan.settings["remedies"]
        built_in = syntheses(self._plan.directory)
        out: dict[str, Experiment] = {}
        missing: dict[str, int] = {}
        for name, experiment in load(self._plan.file, matrix, self._plan.given).experiments.items():
            source = experiment["trace"]
            if Path(source).is_file() or source in built_in:
                out[name] = experiment
            else:
                missing[source] = missing.get(source, 0) + 1
        for source, count in missing.items():
            print(f"note: {count} experiments of {matrix} are left out: there is no trace {source}", file=sys.stderr)
        return out

    def figures(self) -> list[str]:
        return [f"{self.results}/figures/{name}.parquet" for name in self.found]

    def trace(self, name: str) -> list[str]:
        """What the cell reads: the table of a trace that the matrix has too, else the trace's own file."""
        source = self.found[name]["trace"]
        tables = [f"{self._plan.results}/traces/{trace}.parquet" for trace, known in self._plan.traces.items() if known.source == source]
        return tables or [source] * Path(source).is_file()

    def traces(self) -> list[str]:
        """Tables of the traces on which claims are decided; rule trace makes them."""
        wanted = {file for name, experiment in self.found.items() if experiment["rows"] == "all" for file in self.trace(name)}
        return sorted(file for file in wanted if file.endswith(".parquet"))

    def call(self, name: str) -> str:
        """Arguments of `apd cell`, quoted for the shell."""
        table = [file for file in self.trace(name) if file.endswith(".parquet")]
        wanted = [name, "--config", str(self._plan.file), "--matrix", self._plan.settings["remedies"], *(["--trace", *table] if table else [])]
        return f"{shlex.join(wanted)} {self._plan.overrides}".rstrip()

    def decides(self, name: str) -> str:
        """Digest of what decides the cell's runs: another one makes the job stale."""
        experiment = self.found[name]
        parts = [cell(experiment, n) for n in range(1, experiment["replicates"] + 1)]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]
