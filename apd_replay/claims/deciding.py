"""All claims over all runs: evidence rows and one verdict per (claim, engine, trace)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import duckdb

from apd_replay import schemas
from apd_replay.claims import fairness, statistics
from apd_replay.claims.evidence import Cast, Evidence, Measured, Row, as_row, gather
from apd_replay.claims.fairness import Comparison
from apd_replay.claims.rules import Claim, Effect, Erratum, Rules
from apd_replay.claims.verdicts import Condition, condition, decide, note, primary_p_values
from apd_replay.warehouse import lacking


@dataclass(frozen=True)
class Decided:
    """`verdicts`: rows of schemas.VERDICTS."""

    evidence: list[Row]
    verdicts: list[dict[str, Any]]


def decide_all(connection: duckdb.DuckDBPyConnection, rules: Rules) -> Decided:
    runs = runs_of(connection)
    casts = casting(runs)
    facts = facts_of(runs)
    imported = {run["experiment"] for run in runs if run["engine"] == "imported"}  # only these may lack what a claim needs
    lacked = lacking.missing(connection, imported, (need for claim in rules.claims for need in claim.needs))
    connection.execute("CREATE OR REPLACE TEMP TABLE attempts AS FROM main.attempts")  # five claims ask for them: joined once
    rows = {claim.id: gather(connection, claim.id) for claim in rules.claims if not claim.withdrawn}
    errata = gather(connection, "errata") if rules.errata else []
    evidence = [row for found in rows.values() for row in found] + errata
    verdicts = []
    for cast in casts:
        cases = [_Case(claim, Evidence(_of(rows.get(claim.id, []), cast), cast), facts, lacked) for claim in rules.claims]
        stands = statistics.holm(primary_p_values((c.claim.id, c.conditions[0]) for c in cases if c.conditions))
        for case in cases:
            verdicts.append(case.row(cast, holm_stands=case.claim.id in stands))
            evidence += filter(None, (as_row(m, case.claim.id, cast) for m in case.measured))
        evidence += _errata_rows(rules.errata, Evidence(_of(errata, cast), cast), cast)
    return Decided(evidence, verdicts)


def casting(runs: list[dict[str, Any]]) -> list[Cast]:
    """Who plays which part, per engine and trace. Runs with status `failed` play none; of two experiments with the same part
    (other hardware: `E0@h200`) the one with the shorter id plays it, and the other is named as left out."""
    groups: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run["status"] != "failed":
            groups[run["engine"], run["trace"] or ""][run["experiment"]].append(run)
    casts = []
    for (engine, trace), experiments in sorted(groups.items()):
        parts: dict[str, str] = {}
        left_out = []
        for experiment in sorted(experiments, key=lambda e: (len(e), e)):
            if parts.setdefault(experiment.split("@")[0], experiment) != experiment:
                left_out.append(experiment)
        seeds = {e: {r["replicate"]: r["seed"] for r in found} for e, found in experiments.items()}
        ids = {e: [r["run_id"] for r in found] for e, found in experiments.items()}
        truncated = tuple(e for e, found in experiments.items() if any(r["status"] == "truncated" for r in found))
        casts.append(Cast(engine, trace, parts, seeds, ids, tuple(left_out), truncated))
    return casts


@dataclass
class _Case:
    """One claim in one engine and trace."""

    claim: Claim
    evidence: Evidence
    facts: dict[str, list[fairness.Stated]]
    lacked: dict[str, set[str]]

    def __post_init__(self) -> None:
        self.compared: list[Comparison] = []
        self.measured = [self._measure(effect) for effect in self.claim.effects]
        self.conditions = [condition(m) for m in self.measured if m.effect.bound and not m.effect.counter]
        self.counters = [condition(m) for m in self.measured if m.effect.bound and m.effect.counter]

    def _measure(self, effect: Effect) -> Measured:
        """The effect, unless KVC and DP of unequal means would be compared."""
        measured = self.evidence.measure(effect)
        sides = [s for e in measured.experiments for s in self.facts.get(e, [])]
        comparison = fairness.compare(sides) if len(measured.experiments) > 1 else Comparison(None, ())
        self.compared.append(comparison)
        if comparison.refused:
            return Measured(effect, None, measured.experiments, comparison.refused, measured.unit)
        return measured

    def row(self, cast: Cast, *, holm_stands: bool) -> dict[str, Any]:
        conditions = self.conditions
        if conditions and not holm_stands:
            conditions = [condition(conditions[0].measured, holm_stands=_outside_holm(conditions[0])), *conditions[1:]]
        verdict = decide(self.claim, conditions, self.counters, cast.engine)
        shown = next((c.measured for c in conditions if c.measured.estimate), None) if not self.claim.withdrawn else None
        estimate = shown.estimate if shown else None
        used = list(dict.fromkeys(e for c in [*conditions, *self.counters] if c.measured.estimate for e in c.measured.experiments))
        confounders = [*self.claim.confounders, *dict.fromkeys(c for comparison in self.compared for c in comparison.confounders)]
        confounders += [f"runs of {e} were cut before their end" for e in used if e in cast.truncated]
        notes = list(verdict.notes) + [f"left out, as another experiment plays its part: {e}" for e in cast.left_out if e.split("@")[0] in {u.split("@")[0] for u in used}]
        parts = dict.fromkeys(e for m in self.measured for e in m.experiments)
        notes += [f"the runs of {e} lack {lacking.spoken(absent)}" for e in parts if (absent := self.lacked.get(e, set()) & self.claim.needs)]
        return {
            "claim": self.claim.id, "engine": cast.engine, "trace": cast.trace, "statement": self.claim.statement, "structural": self.claim.structural,
            "impact": self.claim.impact, "verdict": verdict.verdict, "leaning": verdict.leaning, "n": estimate.n if estimate else None,
            "effect": shown.shown(estimate.value) if shown and estimate else None, "effect_low": shown.shown(estimate.low) if shown and estimate else None,
            "effect_high": shown.shown(estimate.high) if shown and estimate else None, "unit": shown.unit if shown else None, "experiments": used,
            "runs": [run for e in used for run in cast.runs[e]], "confounders": confounders, "fix": self.claim.fix, "fix_effect": self._fix_effect(),
            "notes": "; ".join(notes),
        }  # fmt: skip

    def _fix_effect(self) -> str | None:
        if self.claim.fix_effect is None:
            return None
        return note(condition(self._measure(self.claim.fix_effect)))


def _outside_holm(c: Condition) -> bool:
    """A figure over all replicates, or one without a p-value, is not corrected."""
    return not primary_p_values([("", c)])


def _errata_rows(errata: Iterable[Erratum], evidence: Evidence, cast: Cast) -> list[Row]:
    found = [as_row(evidence.measure(e.effect), "errata", cast) for e in errata if e.effect is not None]
    return [row for row in found if row is not None]


def _of(rows: list[Row], cast: Cast) -> list[Row]:
    return [row for row in rows if (row.engine, row.trace) == (cast.engine, cast.trace)]


def runs_of(connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    names = schemas.RUNS.names
    rows = connection.execute(f"SELECT {', '.join(names)} FROM runs ORDER BY length(experiment), experiment, replicate").fetchall()
    return [dict(zip(names, row, strict=True)) for row in rows]


def facts_of(runs: list[dict[str, Any]]) -> dict[str, list[fairness.Stated]]:
    facts: dict[str, list[fairness.Stated]] = defaultdict(list)
    for run in runs:
        facts[run["experiment"]].append(fairness.stated(run))
    return facts
