"""The report's sections, in their order: anchor, headline, claims, gaps, runs, simulation error, provenance."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from apd_replay.claims.verdicts import State
from apd_replay.report import claim_figures, run_figures
from apd_replay.report.evidence import Evidence, select
from apd_replay.report.model import Block, Facts, Heading, Link, Note, Report, Section, Table, Verdict
from apd_replay.report.numbers import MISSING, estimate, listed, moment
from apd_replay.report.source import Group, Row, Source, natural, ordered

CLAIMS = ("s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "headline")
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
        _headline(source, verdicts),
        *(_claim(source, c, verdicts) for c in _claims(source) if c != "headline"),
        *_runs(source),
        *_simulation_error(source),
        _provenance(source),
    ]
    return Report("Agentic prefill/decode replay: what the runs say", _summary(source), verdicts, sections)


def _claims(source: Source) -> list[str]:
    found = ({v["claim"] for v in source.verdicts} | {e["claim"] for e in source.evidence} | set(CLAIMS)) - {"errata"}
    return sorted(found, key=_rank)


def _rank(claim: str) -> tuple[Any, ...]:
    return (CLAIMS.index(claim), ()) if claim in CLAIMS else (len(CLAIMS), natural(claim))


def _summary(source: Source) -> list[tuple[str, str]]:
    """For each engine and trace: which runs, how many requests and errors."""
    out = []
    for group in source.groups():
        runs = source.runs_of(group)
        experiments = ordered(r["experiment"] for r in runs)
        text = (
            f"trace {group.trace}: {len(runs):,} runs of {len(experiments)} experiments ({', '.join(experiments)}); "
            f"{sum(r['requests'] or 0 for r in runs):,} requests, {sum(r['errors'] or 0 for r in runs):,} of them failed"
        )
        cut = [f"{r['experiment']}/r{r['replicate']} {r['status']}" for r in runs if r["status"] != "complete"]
        out.append((group.engine, text + (f"; not complete: {', '.join(cut)}" if cut else "")))
    return out


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
                _without_empty_columns(
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
            run = next((r for r in source.runs_of(group) if not run_figures.dp(r)), None)
            section.blocks += [f for f in [run and run_figures.session_sizes(source, run)] if f]
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
    return [_without_empty_columns(Table("Errata of the seed report", columns, rows))] if rows else []


def _without_empty_columns(table: Table) -> Table:
    kept = [c for c in range(len(table.columns)) if any(row[c] is not None for row in table.rows)]
    return replace(table, columns=[table.columns[c] for c in kept], rows=[[row[c] for c in kept] for row in table.rows])


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
    runs = [r for r in source.runs_of(group) if not run_figures.dp(r)] or source.runs_of(group)
    figure = run_figures.gaps(source, runs) if runs else None
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
            pictured = [r for r in firsts.values() if not run_figures.dp(r)][:2] + [r for r in firsts.values() if run_figures.dp(r)][:1]
        for run in pictured:
            section.blocks.append(Heading(f"{run['experiment']}, replicate {run['replicate']} · trace {group.trace}", group.engine))
            section.blocks += run_figures.of_run(source, run)
            lines = run_figures.log_lines(source, run)
            if lines:
                section.blocks.append(lines)
    return [section] if section.blocks else []


def _simulation_error(source: Source) -> list[Section]:
    """Only where the same experiment was simulated and run on real servers with the same trace."""
    rows = source.query("engines_side_by_side")
    if not rows:
        return []
    columns = ("base", "metric", "real", "real_n", "simulated", "simulated_n", "difference", "relative_error")
    titles = ("experiment", "metric", "real (sglang)", "N", "simulated (sim)", "N", "sim - sglang", "relative error")
    section = Section("simulation-error", "Simulation error: the same experiment simulated and on real servers")
    section.blocks.append(Table("Means over replicates", titles, [[r[c] for c in columns] for r in rows], engine="sim and sglang"))
    return [section]


def _provenance(source: Source) -> Section:
    unknown = {(r["experiment"], r["replicate"]): r["lines"] for r in source.query("unknown_lines")}
    columns = (
        "run",
        "experiment",
        "replicate",
        "engine",
        "status",
        "trace",
        "trace digest",
        "cluster",
        "hardware",
        "policy",
        "S",
        "concurrency",
        "seed",
        "model",
        "started (UTC)",
        "duration, s",
        "planned",
        "requests",
        "errors",
        "unknown log lines",
    )
    rows = [[Link(r["run_id"][:12], run_figures.store_href(r, "run.json")), r["experiment"], r["replicate"], r["engine"], r["status"], r["trace"], (r["trace_digest"] or "")[:12], r["cluster"], r["hardware"],
             r["policy"], r["time_scale"], r["concurrency"], r["seed"], r["model"], moment(r["started_ts"]), r["duration_s"], r["planned"], r["requests"], r["errors"],
             unknown.get((r["experiment"], r["replicate"]), 0)] for r in source.runs]  # fmt: skip
    section = Section("provenance", "Where every figure comes from")
    section.blocks.append(
        Note(
            "A run's link leads to its manifest in results/store/; its requests and logs lie beside it. The links work while this file lies in results/report/."
        )
    )
    section.blocks.append(_without_empty_columns(Table(f"{len(rows):,} runs", columns, rows)))
    settings: dict[tuple[str, str | None, str | None], list[int]] = {}
    for r in source.runs:
        settings.setdefault((r["experiment"], r["config"], r["versions"]), []).append(r["replicate"])
    configs = [[e, _replicates(ns), _indented(config), _indented(versions)] for (e, config, versions), ns in settings.items()]
    section.blocks.append(
        Table(
            "Configuration and versions of every experiment",
            ("experiment", "replicates", "configuration as it was run", "versions"),
            configs,
            folded=True,
        )
    )
    return section


def _replicates(ns: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(ns)))


def _indented(text: str | None) -> str:
    """JSON with its keys in order; other text as it is."""
    try:
        return json.dumps(json.loads(text or "null"), indent=1, sort_keys=True, ensure_ascii=False)
    except ValueError:
        return text or ""
