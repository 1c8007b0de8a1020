"""Evidence rows by claim, metric, experiment and scope, as charts and tables want them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from apd_replay.report.model import Table
from apd_replay.report.source import Group, Row, natural, ordered

COLUMNS = ("metric", "scope", "experiment", "replicate", "value", "low", "high", "unit", "n")


@dataclass(frozen=True)
class Evidence:
    """The evidence of one claim in one group."""

    claim: str
    group: Group
    rows: Sequence[Row]

    def metric(self, *names: str, experiment: str | None = None, scope: str | None = None) -> list[Row]:
        return [
            r
            for r in self.rows
            if r["metric"] in names and (experiment is None or r["experiment"] == experiment) and (scope is None or r["scope"] == scope)
        ]

    def per_run(self, *names: str) -> list[Row]:
        return [r for r in self.metric(*names) if r["replicate"] is not None and r["experiment"] is not None]

    def experiments(self, *metrics: str) -> list[str]:
        return ordered(r["experiment"] for r in self.metric(*metrics) if r["experiment"])

    def values(self, metric: str, experiment: str, scope: str | None = None) -> list[float | None]:
        """The metric in each replicate, in their order."""
        rows = [r for r in self.metric(metric, experiment=experiment) if r["scope"] == scope and r["replicate"] is not None]
        return [r["value"] for r in sorted(rows, key=lambda r: r["replicate"])]

    def table(self) -> Table:
        rows = sorted(
            self.rows,
            key=lambda r: (r["metric"], natural(r["experiment"]), natural(r["scope"]), -1 if r["replicate"] is None else r["replicate"]),
        )
        return Table(f"Evidence for {self.claim}: {len(rows):,} figures", COLUMNS, cells(rows), folded=True, engine=self.group.engine)


def select(rows: Sequence[Row], claim: str, group: Group) -> Evidence:
    return Evidence(claim, group, [r for r in rows if r["claim"] == claim and r["engine"] == group.engine and r["trace"] == group.trace])


def cells(rows: Sequence[Row]) -> list[list[object]]:
    """Evidence rows as cells of COLUMNS; a null replicate is said as `all`."""
    return [[r[c] if c != "replicate" or r[c] is not None else "all" for c in COLUMNS] for r in rows]
