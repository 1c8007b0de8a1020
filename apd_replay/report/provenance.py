"""Which runs there are and where they come from; and, where it can be measured, how far the simulator is off."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from apd_replay.report.model import Link, Note, Section, Table, without_empty_columns
from apd_replay.report.numbers import moment
from apd_replay.report.single_run import store_href
from apd_replay.report.source import Source, ordered


def summary(source: Source) -> list[tuple[str, str]]:
    """For each engine and trace: which runs, how many requests and errors."""
    out = []
    for group in source.groups():
        runs = source.runs_of(group)
        experiments = ordered(r["experiment"] for r in runs)
        text = (
            f"trace {group.trace}: {len(runs):,} runs of {len(experiments)} experiments ({', '.join(experiments)}); "
            f"{sum(r['requests'] or 0 for r in runs):,} requests, {sum(r['errors'] or 0 for r in runs):,} of them failed"
        )
        ends = Counter((r["experiment"], r["status"]) for r in runs)
        cut = [f"{ends[e, status]} of {sum(r['experiment'] == e for r in runs)} runs of {e} {status}" for e, status in ends if status != "complete"]
        out.append((group.engine, text + (f"; not complete: {', '.join(cut)}" if cut else "")))
    return out


def simulation_error(source: Source) -> list[Section]:
    """Only where the same experiment was simulated and run on real servers with the same trace."""
    rows = source.query("engines_side_by_side")
    if not rows:
        return []
    columns = ("base", "metric", "real", "real_n", "simulated", "simulated_n", "difference", "relative_error")
    titles = ("experiment", "metric", "real (sglang)", "N", "simulated (sim)", "N", "sim - sglang", "relative error")
    section = Section("simulation-error", "Simulation error: the same experiment simulated and on real servers")
    section.blocks.append(Table("Means over replicates", titles, [[r[c] for c in columns] for r in rows], engine="sim and sglang"))
    return [section]


def runs(source: Source) -> Section:
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
    rows = [[Link(r["run_id"][:12], store_href(r, "run.json")), r["experiment"], r["replicate"], r["engine"], r["status"], r["trace"], (r["trace_digest"] or "")[:12], r["cluster"], r["hardware"],
             r["policy"], r["time_scale"], r["concurrency"], r["seed"], r["model"], moment(r["started_ts"]), r["duration_s"], r["planned"], r["requests"], r["errors"],
             unknown.get((r["experiment"], r["replicate"]), 0)] for r in source.runs]  # fmt: skip
    section = Section("provenance", "Where every figure comes from")
    section.blocks.append(
        Note(
            "A run's link leads to its manifest in results/store/; its requests and logs lie beside it. The links work while this file lies in results/report/."
        )
    )
    section.blocks.append(without_empty_columns(Table(f"{len(rows):,} runs", columns, rows)))
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
