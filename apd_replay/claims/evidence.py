"""Evidence: what the claims' SQL files find in the tables, and the effects over replicates that the rules ask for."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from importlib.resources import files

import duckdb

from apd_replay.claims import statistics
from apd_replay.claims.rules import Effect
from apd_replay.claims.statistics import Estimate
from apd_replay.errors import ApdError

SIMULATED = ("sim", "emulator")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of `evidence` (schemas.EVIDENCE)."""

    engine: str
    trace: str
    claim: str
    metric: str
    experiment: str | None
    replicate: int | None
    scope: str | None
    value: float
    low: float | None
    high: float | None
    unit: str | None
    n: int | None


def question(claim: str) -> str:
    """The claim's SQL. Its first line is the claim in words, as a comment."""
    file = files("apd_replay.claims") / "sql" / f"{claim}.sql"
    if not file.is_file():
        raise ApdError(f"config/claims.yaml has a claim {claim}, but there is no apd_replay/claims/sql/{claim}.sql")
    return file.read_text(encoding="utf-8")


def gather(connection: duckdb.DuckDBPyConnection, claim: str) -> list[Row]:
    """The rows that the claim's SQL yields for every experiment; rows without a value say nothing and are left out."""
    sql = f"""
        WITH found AS ({question(claim)})
        SELECT r.engine, coalesce(r.trace, ''), '{claim}', f.metric, f.experiment, f.replicate::INTEGER, f.scope, f.value::DOUBLE, NULL, NULL, f.unit, f.n::INTEGER
        FROM found f JOIN (SELECT experiment, any_value(engine) AS engine, any_value(trace) AS trace FROM runs GROUP BY experiment) r USING (experiment)
        WHERE f.value IS NOT NULL AND NOT isnan(f.value::DOUBLE)
        ORDER BY r.engine, r.trace, f.metric, length(f.experiment), f.experiment, f.replicate NULLS FIRST, f.scope
    """
    try:
        return [Row(*row) for row in connection.execute(sql).fetchall()]
    except duckdb.Error as error:
        raise ApdError(f"apd_replay/claims/sql/{claim}.sql: {' '.join(str(error).split())}") from None


@dataclass(frozen=True)
class Cast:
    """Who plays the parts (E0, E6, ...) in one engine and trace: experiment ids, their seeds, and run ids.
    `left_out`: experiments whose part another one plays; `truncated`: those of which a run was cut."""

    engine: str
    trace: str
    parts: dict[str, str]
    seeds: dict[str, dict[int, int | None]]
    runs: dict[str, list[str]]
    left_out: tuple[str, ...] = ()
    truncated: tuple[str, ...] = ()

    def paired(self, experiments: list[str]) -> bool:
        """Simulated runs of equal seeds differ by the configuration only."""
        seeds = [self.seeds[e] for e in experiments]
        return self.engine in SIMULATED and all(s == seeds[0] and None not in s.values() for s in seeds)


@dataclass(frozen=True)
class Measured:
    """An effect as the runs give it, on the scale it is computed on (`scaled` turns a shown value into that). `missing`: why there is none."""

    effect: Effect
    estimate: Estimate | None
    experiments: tuple[str, ...]
    missing: str = ""
    unit: str | None = None
    paired: bool = field(default=False)

    def shown(self, value: float | None) -> float | None:
        """From the scale of computation to the scale of the claim."""
        if value is None:
            return None
        value = (math.exp(value) if value < 700 else math.inf) if self.effect.log else value
        return value - 1 if self.effect.change else value

    @property
    def threshold(self) -> float:
        """The condition's threshold on the scale of computation."""
        bound = self.effect.threshold + (1 if self.effect.change else 0)
        return math.log(bound) if self.effect.log else bound


class Evidence:
    """The rows of one claim in one engine and trace, and the effects formed of them."""

    def __init__(self, rows: list[Row], cast: Cast) -> None:
        self.cast = cast
        self._values: dict[tuple[str, str | None, str], dict[int | None, float]] = defaultdict(dict)
        self._units: dict[str, str | None] = {}
        self._n: dict[tuple[str, str | None, str], int | None] = {}
        for row in rows:
            if row.experiment is not None:
                self._values[row.metric, row.scope, row.experiment][row.replicate] = row.value
                self._units[row.metric] = row.unit
                if row.replicate is None:
                    self._n[row.metric, row.scope, row.experiment] = row.n

    def measure(self, effect: Effect) -> Measured:
        absent = [part for part in effect.terms if part not in self.cast.parts]
        experiments = tuple(self.cast.parts[part] for part in effect.terms if part not in absent)
        unit = effect.unit or ("change" if effect.change else "ratio" if effect.log and len(effect.terms) > 1 else self._units.get(effect.metric))
        if absent:
            return Measured(effect, None, experiments, f"no run of {' or '.join(absent)}", unit)
        if effect.over:
            key = (effect.metric, effect.scope, experiments[0])
            value = self._values[key].get(None)
            if value is None:
                return Measured(effect, None, experiments, "nothing in the runs to tell it from", unit)
            return Measured(effect, Estimate(value, self._n.get(key) or 0, None, None, None, None, value, value, None), experiments, "", unit)
        samples = {part: self._sample(effect, self.cast.parts[part]) for part in effect.terms}
        paired = len(experiments) > 1 and self.cast.paired(list(experiments))
        found = statistics.estimate(effect.terms, samples, paired=paired)
        return Measured(effect, found, experiments, "" if found else "nothing in the runs to tell it from", unit, paired)

    def _sample(self, effect: Effect, experiment: str) -> dict[int, float]:
        values = {r: v for r, v in self._values[effect.metric, effect.scope, experiment].items() if r is not None}
        return {r: _log(v) for r, v in values.items()} if effect.log else values


def as_row(measured: Measured, claim: str, cast: Cast) -> Row | None:
    """The effect as a row over replicates; of an `over` metric the SQL's own row is there already."""
    estimate = measured.estimate
    value = measured.shown(estimate.value) if estimate else None
    if estimate is None or value is None or measured.effect.over or math.isnan(value):
        return None
    single = measured.experiments[0] if len(measured.experiments) == 1 else None
    return Row(cast.engine, cast.trace, claim, measured.effect.name, single, None, None if single else measured.effect.label, value,
               measured.shown(estimate.low), measured.shown(estimate.high), measured.unit, estimate.n)  # fmt: skip


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
