"""The kinds of figures that evidence takes. Each is a description; `draw` makes it of one claim's evidence, or says None where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from apd_replay.report import charts, svg
from apd_replay.report.charts import Dot, Heading
from apd_replay.report.evidence import COLUMNS, Evidence, cells
from apd_replay.report.model import Figure, Table, stem
from apd_replay.report.source import Row, natural, ordered

SCOPE_COLORS = {"direct": svg.BLUE, "fallback": svg.ORANGE, "seed": svg.PURPLE, "dp": svg.GREEN, "replay": svg.ORANGE}


@dataclass(frozen=True)
class Drawing:
    """`name`: of the figure's file. `label`: what the value axis shows, unit included. `note`: how to read it."""

    name: str
    title: str
    metrics: tuple[str, ...]
    label: str
    note: str

    def draw(self, e: Evidence) -> Figure | None:
        raise NotImplementedError

    def _heading(self, e: Evidence, experiments: Sequence[str], ns: Sequence[int]) -> Heading:
        """`ns`: replicates behind the figure's parts; where they differ, the least and the most are said."""
        said = f"N = {min(ns)}" + (f" to {max(ns)}" if min(ns) < max(ns) else "") if ns else ""
        parts = [", ".join(experiments), f"engine {e.group.engine}", f"trace {e.group.trace}", said]
        return Heading(self.title, " · ".join(filter(None, parts)))

    def _figure(self, e: Evidence, picture: str, rows: Sequence[Row]) -> Figure:
        file = stem(e.claim, self.name, e.group.engine, e.group.trace)
        numbers = Table("Numbers", COLUMNS, cells(rows), engine=e.group.engine)
        return Figure(file, e.group.engine, self.title, self.note, picture, numbers)


@dataclass(frozen=True)
class Scopes(Drawing):
    """A bar for each scope (bin, worker, or link `P>D`) and metric of one experiment: the mean, its replicates as dots."""

    scopes: str = ""
    links: bool = False

    def draw(self, e: Evidence) -> Figure | None:
        found = [r for r in e.per_run(*self.metrics) if r["scope"] is not None and (">" in r["scope"]) == self.links]
        if not found:
            return None
        which = ordered(r["experiment"] for r in found)[0]
        found = [r for r in found if r["experiment"] == which]
        # Trims come from logs and failures from requests: only runs that have both are set side by side.
        complete = set.intersection(*({r["replicate"] for r in found if r["metric"] == m} for m in self.metrics))
        rows = [r for r in found if r["replicate"] in complete]
        if not rows:
            return None
        names = ordered(r["scope"] for r in rows)
        series = {_words(m): [[r["value"] for r in rows if (r["metric"], r["scope"]) == (m, name)] for name in names] for m in self.metrics}
        heading = self._heading(e, [which], [len(complete)])
        picture = (
            charts.lying_bars(heading, names, series, self.label)
            if self.links
            else charts.bars(heading, names, series, self.label, self.scopes)
        )
        return self._figure(e, picture, rows)


@dataclass(frozen=True)
class Runs(Drawing):
    """A row for each experiment, metric and scope: every replicate a dot, the mean a large one. `first_only`: of the first experiment alone."""

    log: bool = False
    reference: float | None = None
    reference_name: str = ""
    first_only: bool = False

    def draw(self, e: Evidence) -> Figure | None:
        rows = e.per_run(*self.metrics)
        if self.first_only:
            first = e.experiments(*self.metrics)[:1]
            rows = [r for r in rows if r["experiment"] in first]
        if not rows:
            return None
        by_row = sorted(rows, key=lambda r: (self.metrics.index(r["metric"]), natural(r["experiment"]), natural(r["scope"])))
        keys = list(dict.fromkeys((r["experiment"], r["metric"], r["scope"]) for r in by_row))
        one_experiment, one_metric = len({k[0] for k in keys}) == 1, len(self.metrics) == 1
        dots = []
        for experiment, metric, scope in keys:
            values = e.values(metric, experiment, scope)
            known = [v for v in values if v is not None]
            label = ["" if one_experiment and (scope or not one_metric) else experiment, "" if one_metric else _words(metric), scope]
            mean = sum(known) / len(known) if known else None
            dots.append(Dot(" · ".join(filter(None, label)), mean, points=values, color=SCOPE_COLORS.get(scope or "", svg.BLUE)))
        heading = self._heading(e, ordered(k[0] for k in keys), [len(d.points) for d in dots])
        picture = charts.dots(heading, dots, self.label, log=self.log, reference=self.reference, reference_name=self.reference_name)
        return self._figure(e, picture, rows)


@dataclass(frozen=True)
class Effects(Drawing):
    """A row for each metric over all replicates, with its interval, against the line of no effect."""

    note: str = "Dot: estimate; line: its interval over replicates, where there is one."
    reference: float = 0.0
    reference_name: str = "no change"
    log: bool = False

    def draw(self, e: Evidence) -> Figure | None:
        rows = [r for m in self.metrics for r in e.metric(m) if r["replicate"] is None]
        if not rows:
            return None
        several = len({r["scope"] for r in rows}) > 1
        names = [" · ".join(filter(None, (_words(r["metric"]), r["scope"] if several else ""))) for r in rows]
        dots = [Dot(name, r["value"], r["low"], r["high"]) for name, r in zip(names, rows, strict=True)]
        heading = self._heading(e, ordered(r["experiment"] or r["scope"] or "" for r in rows), [r["n"] for r in rows if r["n"]])
        picture = charts.dots(heading, dots, self.label, log=self.log, reference=self.reference, reference_name=self.reference_name)
        return self._figure(e, picture, rows)


@dataclass(frozen=True)
class Links(Drawing):
    """A matrix P by D of one metric, mean of the runs of one experiment."""

    def draw(self, e: Evidence) -> Figure | None:
        found = [r for r in e.per_run(*self.metrics) if r["scope"] and ">" in r["scope"]]
        if not found:
            return None
        which = ordered(r["experiment"] for r in found)[0]
        rows = [r for r in found if r["experiment"] == which]
        n = len({r["replicate"] for r in rows})
        sums: dict[tuple[str, str], float] = {}
        for r in rows:
            p, _, d = r["scope"].partition(">")
            sums[p, d] = sums.get((p, d), 0.0) + (r["value"] or 0.0) / n
        picture = charts.matrix(
            self._heading(e, [which], [n]), ordered(p for p, _ in sums), ordered(d for _, d in sums), sums, "from P", "to D"
        )
        return self._figure(e, picture, rows)


def _words(metric: str) -> str:
    return metric.replace("_", " ")
