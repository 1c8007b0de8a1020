"""The report's sections, in their order: the remedies where they were run, anchor, headline, claims, gaps, runs, simulation error, provenance."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from apd_replay.claims.verdicts import State
from apd_replay.report import claim_figures, provenance, remedies, session_figures, worker_figures
from apd_replay.report.evidence import Evidence, select
from apd_replay.report.model import (
    Block,
    Facts,
    Heading,
    Note,
    Report,
    Section,
    Table,
    Verdict,
    without_empty_columns,
)
from apd_replay.report.numbers import MISSING, estimate, listed
from apd_replay.report.source import Group, Row, Source, natural

CLAIMS = ("s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "headline")
HEADLINE_TABLE = (
    "errors",
    "latency_mean",
    "latency_p50",
    "latency_p90",
    "latency_p99",
    "ttft_mean",
    "ttft_p50",
    "ttft_p90",
    "response_mean",
    "response_p50",
    "response_p90",
    "tpot_p50",
    "goodput",
    "throughput",
)


def build(source: Source) -> Report:
    verdicts = sorted(
        (_verdict(v) for v in source.verdicts), key=lambda v: (_rank(v.claim), source.groups().index(Group(v.engine, v.trace)))
    )
    sections = [
        *remedies.sections(source.results),
        _headline(source, verdicts),
        *(_claim(source, c, verdicts) for c in _claims(source) if c != "headline"),
        *_runs(source),
        *provenance.simulation_error(source),
        provenance.runs(source),
    ]
    return Report("Agentic prefill/decode replay: what the runs say", provenance.summary(source), verdicts, sections)


def _claims(source: Source) -> list[str]:
    found = ({v["claim"] for v in source.verdicts} | {e["claim"] for e in source.evidence} | set(CLAIMS)) - {"errata"}
    return sorted(found, key=_rank)


def _rank(claim: str) -> tuple[Any, ...]:
    return (CLAIMS.index(claim), ()) if claim in CLAIMS else (len(CLAIMS), natural(claim))


def _verdict(v: Row) -> Verdict:
    return Verdict(
        v["claim"], v["statement"], v["verdict"], v["leaning"] or "", v["engine"], v["trace"], v["n"], estimate(v["effect"], v["effect_low"], v["effect_high"], v["unit"]),
        v["structural"] or "", v["impact"] or "", ", ".join(v["experiments"] or ()), tuple(v["confounders"] or ()), v["fix"] or "", v["fix_effect"] or "", v["notes"] or "",
        tuple(v["runs"] or ()), {"effect": v["effect"], "effect_low": v["effect_low"], "effect_high": v["effect_high"]},
    )  # fmt: skip


def _headline(source: Source, verdicts: Sequence[Verdict]) -> Section:
    section = Section("headline", "Headline: KVC against DP", _labels(verdicts, "headline"))
    for group in source.groups():
        evidence = select(source.evidence, "headline", group)
        section.blocks += _opening(group, verdicts, "headline")
        compared = _experiments(source, group, "headline")
        drawn = replace(evidence, rows=[r for r in evidence.rows if not compared or r["experiment"] is None or r["experiment"] in compared])
        per_run = [r for r in drawn.rows if r["replicate"] is not None]
        keys = sorted({(r["experiment"], r["replicate"]) for r in per_run}, key=lambda k: (natural(k[0]), k[1]))
        metrics = [m for m in HEADLINE_TABLE if any(r["metric"] == m for r in per_run)]
        values = {(r["experiment"], r["replicate"], r["metric"]): r["value"] for r in per_run if r["scope"] is None}
        units = {r["metric"]: r["unit"] for r in per_run}
        columns = ["experiment", "replicate", *(f"{m.replace('_', ' ')}, {units[m]}" if units[m] else m.replace("_", " ") for m in metrics)]
        if keys:
            rows: list[list[Any]] = [[e, n, *(values.get((e, n, m)) for m in metrics)] for e, n in keys]
            section.blocks.append(Table("Every run", columns, rows, folded=len(rows) > 30, engine=group.engine))
        over = [r for r in evidence.rows if r["replicate"] is None]
        if over:
            rows = [[r["metric"], r["scope"], r["experiment"], r["value"], r["low"], r["high"], r["unit"], r["n"]] for r in over]
            section.blocks.append(
                without_empty_columns(
                    Table(
                        "KVC against DP, over the replicates",
                        ("metric", "scope", "experiment", "value", "low", "high", "unit", "n"),
                        rows,
                        engine=group.engine,
                    )
                )
            )
        section.blocks += [*claim_figures.figures(drawn), *_all_evidence(evidence)]
    section.blocks += _errata(source, "headline")
    return section


def _claim(source: Source, claim: str, verdicts: Sequence[Verdict]) -> Section:
    own = [v for v in verdicts if v.claim == claim]
    title = f"{claim}: {own[0].statement}" if own else claim
    section = Section(claim, title, _labels(verdicts, claim))
    if claim == "s0":
        section.blocks.append(
            Note(
                "The validity anchor: how far runs of one configuration lie apart. A comparison needs at least three runs on both sides, and a difference inside this spread is undecided."
            )
        )
    for group in source.groups():
        evidence = select(source.evidence, claim, group)
        opening = _opening(group, verdicts, claim)
        if not opening and not evidence.rows:
            continue
        section.blocks += opening or [Heading(f"trace {group.trace}", group.engine)]
        section.blocks += [*claim_figures.figures(evidence), *_all_evidence(evidence)]
        if claim == "s1":
            run = next((r for r in source.runs_of(group) if r["disaggregated"]), None)
            section.blocks += [f for f in [run and session_figures.session_sizes(source, run)] if f]
        if claim == "s7":
            section.blocks += _gaps(source, group)
    if not section.blocks:
        section.blocks.append(Note("No runs in this results folder speak to this claim."))
    section.blocks += _errata(source, claim)
    return section


def _errata(source: Source, claim: str) -> list[Block]:
    """What the seed documents got wrong about a claim, each beside the figure that the runs give."""
    rows: list[list[Any]] = []
    for erratum in (e for e in source.errata if e.claim == claim):
        found = [
            r
            for r in source.evidence
            if r["claim"] == "errata" and erratum.effect and r["metric"] == erratum.effect.name and r["replicate"] is None
        ]
        for r in found or [dict.fromkeys(("engine", "trace", "experiment", "value", "low", "high", "unit", "n"))]:
            says = erratum.effect.says if erratum.effect and found else "nothing to measure"
            rows.append(
                [
                    erratum.said,
                    erratum.remark,
                    says,
                    *(r[c] for c in ("engine", "trace", "experiment", "value", "low", "high", "unit", "n")),
                ]
            )
    columns = ("the seed report says", "but", "measured here", "engine", "trace", "experiment", "value", "low", "high", "unit", "n")
    return [without_empty_columns(Table("Errata of the seed report", columns, rows))] if rows else []


def _labels(verdicts: Sequence[Verdict], claim: str) -> list[tuple[str, str]]:
    return [(v.engine, v.verdict) for v in verdicts if v.claim == claim]


def _opening(group: Group, verdicts: Sequence[Verdict], claim: str) -> list[Block]:
    """What was concluded about a claim from one group's runs: conclusion, effect, uncertainty, confounders, fix."""
    found = [v for v in verdicts if (v.claim, v.engine, v.trace) == (claim, group.engine, group.trace)]
    out: list[Block] = []
    for v in found:
        leaning = f", leaning to {v.leaning}" if v.leaning else ""
        facts = [
            ("Conclusion", "\n".join([f"{v.verdict}{leaning}", *_findings(v.notes)])),
            ("Effect", v.effect),
            ("Uncertainty", _uncertainty(v)),
            ("What else could explain it", listed(v.confounders) or "nothing that is known"),
            ("Fix, and what it changed", " ".join(filter(None, (v.fix, v.fix_effect))) or "none tried"),
            ("Runs", f"{len(v.runs)}, of {v.experiments}" if v.runs else "none"),
        ]
        out += [Heading(f"trace {group.trace}", group.engine), Facts(facts, group.engine)]
    return out


def _findings(notes: str) -> list[str]:
    """The notes of a verdict, one a condition, then its remarks."""
    states = "|".join(state.value for state in State)
    return [part for part in re.split(f"; (?=(?:{states}): |[A-Z][a-z]+ [a-z])", notes) if part]


def _uncertainty(v: Verdict) -> str:
    if v.n is None:
        return MISSING
    return f"N = {v.n} on the thinner side; " + (
        "95 % interval over replicates"
        if v.figures["effect_low"] is not None
        else "no interval: too few replicates, or a figure over all of them"
    )


def _all_evidence(evidence: Evidence) -> list[Block]:
    return [evidence.table()] if evidence.rows else []


def _experiments(source: Source, group: Group, claim: str) -> set[str]:
    """The experiments that a claim was decided on."""
    return {
        e
        for v in source.verdicts
        if (v["claim"], v["engine"], v["trace"]) == (claim, group.engine, group.trace)
        for e in v["experiments"] or ()
    }


def _gaps(source: Source, group: Group) -> list[Block]:
    runs = [r for r in source.runs_of(group) if r["disaggregated"]] or source.runs_of(group)
    figure = session_figures.gaps(source, runs) if runs else None
    return [figure] if figure else []


def _runs(source: Source) -> list[Section]:
    """Pictures of single runs: one of each experiment behind the headline (KVC, DP) and behind s3 (backpressure); where these
    were not decided, of the first two experiments with D's and the first without."""
    section = Section("runs", "Inside single runs: sessions, KV pools, links")
    for group in source.groups():
        firsts: dict[str, Row] = {}
        for run in source.runs_of(group):
            firsts.setdefault(run["experiment"], run)
        asked = _experiments(source, group, "headline") | _experiments(source, group, "s3")
        pictured = [r for e, r in firsts.items() if e in asked]
        if not pictured:
            pictured = [r for r in firsts.values() if r["disaggregated"]][:2] + [r for r in firsts.values() if not r["disaggregated"]][:1]
        for run in pictured:
            section.blocks.append(Heading(f"{run['experiment']}, replicate {run['replicate']} · trace {group.trace}", group.engine))
            drawn = [session_figures.session_map(source, run)]
            if run["disaggregated"]:
                drawn += [worker_figures.pools(source, run), worker_figures.links(source, run), worker_figures.waits(source, run)]
            section.blocks += [figure for figure in drawn if figure]
            lines = worker_figures.log_lines(source, run)
            if lines:
                section.blocks.append(lines)
    return [section] if section.blocks else []
