"""What the remedies buy, from the figures of `snakemake remedies` (results/remedies/figures): effects over paired replicates, and the five questions
that the grid was run for. Nothing here knows a value; where runs are missing, a question goes unanswered and the section says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apd_replay.claims.statistics import Estimate, estimate
from apd_replay.report import charts
from apd_replay.report.model import Block, Facts, Figure, Heading, Note, Section, Table, stem
from apd_replay.report.numbers import interval, number
from apd_replay.report.source import ordered

KVC, DP, ALL = "E0", "E6", "all"
SINGLE = ("F1", "F2", "F3", "F4", "F5", "F6")
SEED_CELL = (10.0, 32, 1.0)  # time-scale, concurrency, pool scale
PAIR = "F1+F2"  # what the seed documents propose against starvation (claim s1)
GOAL = (("latency_mean", "mean latency"), ("latency_p90", "latency P90"), ("ttft_p50", "TTFT P50"))
BOUGHT = (
    ("latency_mean", "latency mean"),
    ("latency_p50", "latency P50"),
    ("latency_p90", "latency P90"),
    ("latency_p99", "latency P99"),
    ("ttft_p50", "TTFT P50"),
    ("ttft_mean", "TTFT mean"),
    ("response_mean", "response mean"),
    ("response_p90", "response P90"),
    ("response_p99", "response P99"),
)

Cell = tuple[float, int, float]
Row = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """The rows of one trace and engine; `hardware_scale` is in the name of a cell's place only where a sensitivity run changed it."""

    trace: str
    engine: str
    rows: Sequence[Row]

    def of(self, design: str, cell: Cell = SEED_CELL, scaled: str | None = None) -> list[Row]:
        """The replicates of a design at a cell; `scaled`: the label of a sensitivity run."""
        return [
            r
            for r in self.rows
            if r["design"] == design and (r["time_scale"], r["concurrency"], r["kv_pool_scale"]) == cell and _label(r) == (scaled or "")
        ]

    def mean(self, design: str, metric: str, cell: Cell = SEED_CELL, scaled: str | None = None) -> float | None:
        values = [r[metric] for r in self.of(design, cell, scaled) if r[metric] is not None]
        return sum(values) / len(values) if values else None

    def effect(self, terms: dict[tuple[str, Cell], float], metric: str, *, log: bool, scaled: str | None = None) -> Estimate | None:
        """Weighted sum over (design, cell), paired by replicate; `log`: of logarithms, shown as a ratio."""
        samples = {}
        for design, cell in terms:
            values = {r["replicate"]: float(r[metric]) for r in self.of(design, cell, scaled) if r[metric] is not None}
            samples[f"{design} {cell}"] = {n: _log(v) for n, v in values.items()} if log else values
        both = set.intersection(*map(set, samples.values()))  # who has more replicates is compared on those that the other has too
        samples = {name: {n: v for n, v in values.items() if n in both} for name, values in samples.items()}
        return estimate({f"{d} {c}": w for (d, c), w in terms.items()}, samples, paired=True)

    def ratio(self, a: str, b: str, metric: str, cell: Cell = SEED_CELL, scaled: str | None = None) -> Estimate | None:
        return self.effect({(a, cell): 1.0, (b, cell): -1.0}, metric, log=True, scaled=scaled)

    def designs(self, cell: Cell = SEED_CELL) -> list[str]:
        found = {r["design"] for r in self.rows if (r["time_scale"], r["concurrency"], r["kv_pool_scale"]) == cell and not _label(r)}
        first = [KVC, DP, *SINGLE]
        return [d for d in first if d in found] + [d for d in ordered(found) if d not in first]


def sections(results: Path) -> list[Section]:
    """One section; none where the folder holds no grid."""
    grids = read(results)
    if not grids:
        return []
    section = Section("remedies", "The remedies: what they buy, and whether KVC can win")
    for grid in grids:
        section.blocks += [Heading(f"trace {grid.trace}", grid.engine), *_answers(grid), *_bought(grid), *_claims(grid)]
        section.blocks += [*_map(grid), *_time_scale(grid), *_sensitivity(grid)]
    return [section]


def read(results: Path) -> list[Grid]:
    files = sorted((results / "figures").glob("*.parquet"))
    if not files:
        return []
    import pyarrow.parquet as pq

    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    keys = sorted({(r["trace"], r["engine"]) for r in rows}, key=lambda k: (-sum(r["trace"] == k[0] for r in rows), k))
    return [Grid(trace, engine, [r for r in rows if (r["trace"], r["engine"]) == (trace, engine)]) for trace, engine in keys]


# the answers --------------------------------------------------------------------------------------------------------


def _answers(grid: Grid) -> list[Block]:
    """Each in a line, in the order in which they were asked."""
    facts = [
        ("Can KVC win?", _goal(grid)),
        ("What removes starvation (s1)?", _starvation(grid)),
        ("Which single remedy first?", _first(grid)),
        ("Does the verdict change with the time-scale (s7)?", _verdict_at_scales(grid)),
        ("What does it rest on?", _rests(grid)),
    ]
    return [Facts([(q, a) for q, a in facts if a], grid.engine)]


def _goal(grid: Grid) -> str:
    """KVC designs without errors that are better than DP in all that the goal names, the interval clear of 1."""
    winners = []
    for design in grid.designs():
        effects = [grid.ratio(design, DP, metric) for metric, _ in GOAL]
        if design != DP and grid.mean(design, "errors") == 0 and all(e and e.high is not None and e.high < 0 for e in effects):
            winners.append((design, [e for e in effects if e]))
    if grid.mean(DP, "latency_mean") is None:
        return ""
    if not winners:
        return f"No design here has zero errors and beats DP-CA on {', '.join(name for _, name in GOAL)}."
    best = min(winners, key=lambda w: grid.mean(w[0], "response_mean") or math.inf)
    said = ", ".join(f"{name} {_ratio(e)}" for (_, name), e in zip(GOAL, best[1], strict=True))
    tail = _ratio(grid.ratio(best[0], DP, "response_p99"))
    return (
        f"Yes: {len(winners)} of {len(grid.designs()) - 2} designs with a remedy have zero errors and beat DP-CA on all of the goal's figures. "
        f"The best by mean response is {best[0]}: {said} times DP-CA's; response mean {_ratio(grid.ratio(best[0], DP, 'response_mean'))}, "
        f"P99 {tail}."
    )


def _starvation(grid: Grid) -> str:
    base, pair = grid.mean(KVC, "starved_sessions"), grid.mean(PAIR, "starved_sessions")
    if base is None or pair is None:
        return ""
    gone = [d for d in grid.designs() if d not in (KVC, DP) and (grid.mean(d, "starved_sessions") or 0) * 2 <= base]
    word = "confirmed" if pair * 2 <= base else "not confirmed"
    return (
        f"{KVC} starves {number(base)} sessions a run, {PAIR} {number(pair)}: the cause that s1 names (pinned, blind to capacity) is {word}. "
        f"Alone, {', '.join(d for d in gone if d in SINGLE) or 'no remedy'} at least halves it."
    )


def _first(grid: Grid) -> str:
    found = sorted((mean, d) for d in SINGLE if (mean := grid.mean(d, "response_mean")) is not None)
    if len(found) < 2:
        return ""
    best, second = found[0][1], found[1][1]
    lead = grid.ratio(best, second, "response_mean")
    clear = "clearly ahead of" if lead and lead.high is not None and lead.high < 0 else "not clearly ahead of"
    return f"{best}: mean response {_ratio(grid.ratio(best, KVC, 'response_mean'))} times {KVC}'s, {clear} {second} ({_ratio(grid.ratio(second, KVC, 'response_mean'))})."


def _verdict_at_scales(grid: Grid) -> str:
    slow, fast = (1.0, *SEED_CELL[1:]), SEED_CELL
    said = []
    for design in (KVC, ALL, "patient"):
        at = [grid.ratio(design, DP, "response_mean", cell) for cell in (fast, slow)]
        if any(e is None for e in at):
            continue
        change = grid.effect({(design, slow): 1.0, (DP, slow): -1.0, (design, fast): -1.0, (DP, fast): 1.0}, "response_mean", log=True)
        sides = [_side(e) for e in at]
        word = "the verdict stays" if sides[0] == sides[1] else "the verdict changes"
        if "undecided" in sides:
            moved = change is not None and change.low is not None and change.high is not None and not change.low <= 0 <= change.high
            word = "the ratio changes, but at one of them neither side is ahead" if moved else "undecided"
        said.append(f"{design} / DP-CA, mean response: {_ratio(at[0])} at S = 10, {_ratio(at[1])} at S = 1 (ratio of ratios {_ratio(change)}): {word}")
    return "\n".join(said)


def _rests(grid: Grid) -> str:
    """Whether the winner still wins in every sensitivity run."""
    labels = ordered({_place_label(r) for r in grid.rows if _is_sensitivity(r)} - {""})
    said = []
    for design in (ALL, "patient"):
        lost = []
        for label in labels:
            effect = _sensitive_ratio(grid, design, label)
            if effect is not None and _side(effect) != "better":
                lost.append(label)
        if labels and grid.of(design):
            said.append(f"{design} stays better than DP-CA in mean response in {len(labels) - len(lost)} of {len(labels)} variants" + (f"; not with {', '.join(lost)}" if lost else ""))
    return "\n".join(said)


# tables -------------------------------------------------------------------------------------------------------------


def _bought(grid: Grid) -> list[Block]:
    """Every design at the seed's cell against E0 and against DP-CA."""
    out: list[Block] = []
    for base, title in ((KVC, "What each remedy buys: ratio to E0 (KVC without any)"), (DP, "The same against DP-CA: below 1 is better than DP-CA")):
        rows = []
        for design in grid.designs():
            if design == base or not grid.of(base):
                continue
            own = grid.of(design)
            rows.append([design, own[0]["title"], len(own), grid.mean(design, "errors"), *(_ratio(grid.ratio(design, base, m)) for m, _ in BOUGHT),
                         grid.mean(design, "starved_sessions") if design != DP else None, grid.mean(design, "direct_rate")])  # fmt: skip
        if rows:
            columns = ["experiment", "what", "N", "errors a run", *(name for _, name in BOUGHT), "starved sessions", "direct rate"]
            out.append(Table(f"{title}; S = 10, concurrency 32, N replicates, 95 % intervals", columns, rows, engine=grid.engine))
    values = [[d, grid.mean(d, "errors"), *(grid.mean(d, m) for m, _ in BOUGHT), grid.mean(d, "throughput"), grid.mean(d, "duration_s")] for d in grid.designs()]
    columns = ["experiment", "errors a run", *(f"{name}, s" for _, name in BOUGHT), "throughput, tokens/s", "duration, s"]
    return [*out, Table("Means over the replicates", columns, values, folded=True, engine=grid.engine)] if out else []


def _claims(grid: Grid) -> list[Block]:
    """Which claims a remedy takes away: what the claim measures, with and without it."""
    if not grid.of(KVC):
        return []
    rows = []
    for design in grid.designs():
        if design in (KVC, DP):
            continue
        starved = grid.effect({(design, SEED_CELL): 1.0, (KVC, SEED_CELL): -0.5}, "starved_sessions", log=False)
        rows.append([design, _removed(starved), _removed_headline(grid.ratio(design, DP, "response_mean")), _errors_word(grid, design)])
    return [Table("Which claims each removes", ["experiment", "s1: starvation at least halved", "headline: KVC no longer slower than DP-CA", "s2, s3, s5: errors"],
                  rows, engine=grid.engine)]  # fmt: skip


def _map(grid: Grid) -> list[Block]:
    """Mean response over DP-CA's, over load, capacity and time-scale: a picture a design."""
    out: list[Block] = []
    plain = [r for r in grid.rows if not _label(r) and not _is_sensitivity(r)]
    cells = sorted({(r["time_scale"], r["concurrency"], r["kv_pool_scale"]) for r in plain})
    if len(cells) < 2:
        return []
    columns = [f"pool x {k:g}" for k in sorted({k for _, _, k in cells})]
    for design in (KVC, *SINGLE, ALL, "patient"):
        ratios, rows = {}, []
        for s, c, k in cells:
            effect = grid.ratio(design, DP, "response_mean", (s, c, k))
            if effect is None:
                continue
            ratios[f"S = {s:g}, {c} at once", f"pool x {k:g}"] = math.exp(effect.value)
            rows.append([s, c, k, math.exp(effect.value), _exp(effect.low), _exp(effect.high), effect.n, grid.mean(design, "errors", (s, c, k)),
                         grid.mean(DP, "errors", (s, c, k)), _side(effect)])  # fmt: skip
        if len(rows) < 2:
            continue
        title = f"{design} over DP-CA, mean response: below 1 KVC wins"
        table = Table(title, ["time-scale S", "concurrency", "pool", "ratio", "low", "high", "N", "errors", "errors of DP-CA", "KVC is"], rows, engine=grid.engine)
        lines = list(dict.fromkeys(row for row, _ in ratios))
        svg = charts.matrix(charts.Heading(title, f"engine {grid.engine}, trace {grid.trace}"), lines, columns, ratios, "", "")
        won = sum(row[-1] == "better" for row in rows)
        note = f"KVC ({design}) beats DP-CA in {won} of {len(rows)} cells, the interval clear of 1."
        out.append(Figure(stem("remedies-map", design, grid.trace), grid.engine, title, note, svg, table))
    return out


def _time_scale(grid: Grid) -> list[Block]:
    text = _verdict_at_scales(grid)
    note = "S divides gaps and arrivals alike, so S = 1 is also a tenth of the load; concurrency and capacity are the same."
    return [Facts([("s7: KVC against DP-CA at S = 10 and S = 1", text), ("What else changes", note)], grid.engine)] if text else []


def _sensitivity(grid: Grid) -> list[Block]:
    labels = ordered({_place_label(r) for r in grid.rows if _is_sensitivity(r)})
    if not labels:
        return []
    designs = [d for d in (KVC, ALL, "patient") if grid.of(d)]
    rows = [["as configured", *(_ratio(grid.ratio(d, DP, "response_mean")) for d in designs)]]
    rows += [[label, *(_ratio(_sensitive_ratio(grid, d, label)) for d in designs)] for label in labels]
    why = (
        "The three least certain inputs, each a guess by its own file's word: the pool (the seeds state no memory fraction), the transfer rate "
        "(NVLink or a network card is not known) and what an admission call costs and takes. Nothing else of the hardware file is varied: it was measured, or follows from bandwidths."
    )
    return [Note(why), Table("What the answer rests on: mean response over DP-CA's", ["variant", *designs], rows, engine=grid.engine)]


# words and numbers --------------------------------------------------------------------------------------------------


def _is_sensitivity(row: Row) -> bool:
    return bool(_label(row)) or row["kv_pool_scale"] not in (0.5, 1.0, 2.0)


def _label(row: Row) -> str:
    """The label of a sensitivity run of coefficients; a design's own chunk size is no such run."""
    parts = row["experiment"].split("@")[0].split(".", 1)
    return parts[1] if row["hardware_scale"] != "{}" and len(parts) > 1 else ""


def _place_label(row: Row) -> str:
    return _label(row) or row["experiment"].split("@")[0].split(".", 1)[-1]


def _sensitive_ratio(grid: Grid, design: str, label: str) -> Estimate | None:
    row = next((r for r in grid.rows if _is_sensitivity(r) and _place_label(r) == label), None)
    if row is None:
        return None
    return grid.ratio(design, DP, "response_mean", (SEED_CELL[0], SEED_CELL[1], row["kv_pool_scale"]), _label(row) or None)


def _side(effect: Estimate | None) -> str:
    """Of a log ratio to DP-CA."""
    if effect is None or effect.low is None or effect.high is None:
        return "undecided"
    return "better" if effect.high < 0 else "worse" if effect.low > 0 else "undecided"


def _removed(effect: Estimate | None) -> str:
    if effect is None or effect.high is None or effect.low is None:
        return "undecided"
    return "yes" if effect.high <= 0 else "no" if effect.low > 0 else "undecided"


def _removed_headline(effect: Estimate | None) -> str:
    return {"better": "yes", "worse": "no"}.get(_side(effect), "undecided")


def _errors_word(grid: Grid, design: str) -> str:
    base, own = grid.mean(KVC, "errors"), grid.mean(design, "errors")
    if not base:
        return f"none to remove: {KVC} has none here" + (f", this one {number(own)}" if own else "")
    return f"{number(own)} against {number(base)} a run"


def _ratio(effect: Estimate | None) -> str:
    if effect is None:
        return "–"
    value = _exp(effect.value)
    return " ".join(filter(None, (number(value), interval(_exp(effect.low), _exp(effect.high)))))


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(value) if value < 700 else math.inf


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
