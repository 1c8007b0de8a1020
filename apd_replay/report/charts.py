"""The kinds of charts that the report needs. Data in, one SVG text out; nothing here knows a claim or a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from apd_replay.report import svg
from apd_replay.report.numbers import number, tick
from apd_replay.report.svg import TITLE_HEIGHT as TOP
from apd_replay.report.svg import WIDTH, Scale, scale

Values = Sequence[float | None]


@dataclass(frozen=True)
class Heading:
    """Title: what is shown. Subtitle: experiment, engine, N."""

    title: str
    subtitle: str


def bars(heading: Heading, groups: Sequence[str], series: Mapping[str, Sequence[Values]], label: str, group_label: str = "") -> str:
    """Grouped bars of means, every replicate a dot beside its bar. `series`: name -> for each group the values of the replicates."""
    left, right = 58, WIDTH - 8
    key, more = svg.legend(list(zip(series, svg.SERIES, strict=False)) if len(series) > 1 else [], left, TOP + 8)
    bottom = TOP + 210 + more
    y = scale([v for rows in series.values() for values in rows for v in values], bottom, TOP + 40 + more)
    parts = [key, svg.y_axis(y, left, right, label), svg.line(left, y(0), right, y(0), opacity=0.5)]
    slot = (right - left) / max(1, len(groups))
    width = min(42.0, slot * 0.8 / max(1, len(series)))
    for g, name in enumerate(groups):
        middle = left + slot * (g + 0.5)
        parts.append(svg.words(middle, bottom + 15, name, size=10, anchor="middle", limit=max(4, int(slot / 5.6))))
        for s, (color, rows) in enumerate(zip(svg.SERIES, series.values(), strict=False)):
            known = [v for v in rows[g] if v is not None and math.isfinite(v)]
            x = middle + width * (s - len(series) / 2)
            if not known:
                parts.append(svg.words(x + width / 2, y(0) - 4, "–", anchor="middle", opacity=0.6))
                continue
            mean = sum(known) / len(known)
            parts.append(svg.tag("rect", x=x + 1, y=min(y(mean), y(0)), width=width - 2, height=abs(y(0) - y(mean)), fill=color))
            if len(known) > 1:
                parts += [
                    svg.tag(
                        "circle",
                        cx=x + width * (k + 1) / (len(known) + 1),
                        cy=y(v),
                        r=2.2,
                        fill="currentColor",
                        stroke="#fff",
                        stroke_width=0.7,
                    )
                    for k, v in enumerate(known)
                ]
            if width >= 16:
                parts.append(svg.words(x + width / 2, min(y(max(known)), y(0)) - 5, number(mean), size=10, anchor="middle"))
    parts.append(svg.words((left + right) / 2, bottom + 33, group_label, anchor="middle"))
    return svg.picture(bottom + 52, heading.title, heading.subtitle, *parts)


@dataclass(frozen=True)
class Dot:
    """One row of `dots`: an estimate with its interval, and the replicates behind it."""

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    points: Values = ()
    color: str = svg.BLUE


def lying_bars(heading: Heading, rows: Sequence[str], series: Mapping[str, Sequence[Values]], label: str) -> str:
    """As `bars`, lying: for long names, such as links."""
    left = min(270.0, 14 + max((svg.text_width(r, 11) for r in rows), default=60))
    key, more = svg.legend(list(zip(series, svg.SERIES, strict=False)), left, TOP + 8)
    right, thick, top = WIDTH - 70, 11.0, TOP + 30 + more
    step = thick * len(series) + 8
    bottom = top + step * max(1, len(rows))
    x = scale([v for of in series.values() for values in of for v in values], left, right)
    parts = [key, svg.x_axis(x, bottom, top - 4, label)]
    for r, name in enumerate(rows):
        parts.append(svg.words(left - 8, top + step * (r + 0.5) + 4, name, anchor="end", limit=40))
        for s, (color, of) in enumerate(zip(svg.SERIES, series.values(), strict=False)):
            known = [v for v in of[r] if v is not None and math.isfinite(v)]
            y = top + step * r + 4 + thick * s
            if known:
                mean = sum(known) / len(known)
                parts.append(svg.tag("rect", x=x.start, y=y + 0.5, width=x(mean) - x.start, height=thick - 1, fill=color))
                parts += [
                    svg.tag("circle", cx=x(v), cy=y + thick / 2, r=2, fill="currentColor", stroke="#fff", stroke_width=0.6)
                    for v in known
                    if len(known) > 1
                ]
                parts.append(svg.words(x(max(known)) + 6, y + thick - 2, number(mean), size=9.5))
    return svg.picture(bottom + 38, heading.title, heading.subtitle, *parts)


def dots(
    heading: Heading, rows: Sequence[Dot], label: str, *, log: bool = False, reference: float | None = None, reference_name: str = ""
) -> str:
    """Dot and interval, a row each, the value beside it. `reference`: the threshold or the line of no effect."""
    left = min(270.0, 14 + max((svg.text_width(r.label, 11) for r in rows), default=60))
    right, step, top = WIDTH - 110, 22, TOP + 22
    bottom = top + step * max(1, len(rows))
    x = scale([v for r in rows for v in (r.value, r.low, r.high, *r.points)] + [reference], left, right, log=log, zero=not log)
    parts = [svg.x_axis(x, bottom, top - 6, label)]
    if reference is not None:
        parts += [
            svg.line(x(reference), bottom, x(reference), top - 6, dash="4 3", opacity=0.8),
            svg.words(x(reference), top - 10, reference_name or tick(reference), size=10, anchor="middle", opacity=0.8),
        ]
    for k, row in enumerate(rows):
        y = top + step * (k + 0.5)
        parts.append(svg.words(left - 8, y + 4, row.label, anchor="end", limit=40))
        if row.low is not None and row.high is not None and (row.low > 0 or not log):
            parts.append(svg.line(x(row.low), y, x(row.high), y, width=2.5, color=row.color))
        if row.value is not None and not math.isnan(row.value) and (row.value > 0 or not log):
            parts.append(
                svg.tag(
                    "circle",
                    cx=x(row.value),
                    cy=y,
                    r=5,
                    fill=row.color,
                    fill_opacity=0.55 if row.points else 1.0,
                    stroke=row.color,
                    stroke_width=1.2,
                )
            )
        parts += [
            svg.tag("circle", cx=x(v), cy=y, r=2, fill="currentColor", fill_opacity=0.8)
            for v in row.points
            if v is not None and (v > 0 or not log)
        ]
        parts.append(svg.words(right + 10, y + 4, number(row.value), size=11))
    return svg.picture(bottom + 38, heading.title, heading.subtitle, *parts)


def ecdf(
    heading: Heading, curves: Mapping[str, Sequence[float]], label: str, *, log: bool = True, counts: Mapping[str, int] | None = None
) -> str:
    """Cumulative shares. `curves`: name -> quantiles at equal steps from 0 to 1, so that size does not grow with the data."""
    left, right = 58, WIDTH - 8
    names = [f"{name} (n = {number(counts[name])})" if counts and name in counts else name for name in curves]
    key, more = svg.legend(list(zip(names, svg.SERIES, strict=False)), left, TOP + 8)
    bottom, top = TOP + 230 + more, TOP + 40 + more
    values = [v for curve in curves.values() for v in curve]
    log = log and any(v > 0 for v in values)
    x = scale(values, left, right, log=log)
    y = Scale(0.0, 1.0, bottom, top)
    parts = [key, svg.x_axis(x, bottom, top, label, 8), svg.y_axis(y, left, right, "share at or below")]
    for curve, color, dash in zip(curves.values(), svg.SERIES, (None, "6 3", "2 2", "8 3 2 3", None, "6 3", "2 2"), strict=False):
        last = max(1, len(curve) - 1)
        steps: list[tuple[float, float]] = []
        for k, v in enumerate(curve):
            at = x(v if v > 0 or not log else x.low)
            if steps:
                steps.append((at, steps[-1][1]))
            steps.append((at, y(k / last)))
        parts.append(svg.path(steps, color, width=1.8, dash=dash))
    return svg.picture(bottom + 40, heading.title, heading.subtitle, *parts)


def matrix(
    heading: Heading, rows: Sequence[str], columns: Sequence[str], cells: Mapping[tuple[str, str], float], row_label: str, column_label: str
) -> str:
    """A count in each cell, shaded by its size."""
    left, top, wide, high = 96.0, TOP + 36, 74.0, 30.0
    most = max(cells.values(), default=0.0)
    parts = [svg.words(left + wide * len(columns) / 2, TOP + 12, column_label, anchor="middle"), svg.words(0, top - 8, row_label)]
    parts += [svg.words(left + wide * (c + 0.5), top - 8, name, size=10, anchor="middle", limit=12) for c, name in enumerate(columns)]
    for r, row in enumerate(rows):
        y = top + high * r
        parts.append(svg.words(left - 8, y + high / 2 + 4, row, anchor="end", limit=14))
        for c, column in enumerate(columns):
            value = cells.get((row, column))
            share = value / most if value and most else 0.0
            parts.append(
                svg.tag(
                    "rect",
                    x=left + wide * c + 1,
                    y=y + 1,
                    width=wide - 2,
                    height=high - 2,
                    fill=svg.RED,
                    fill_opacity=0.08 + 0.55 * share,
                    stroke="currentColor",
                    stroke_opacity=0.2,
                )
            )
            parts.append(svg.words(left + wide * (c + 0.5), y + high / 2 + 4, number(value), anchor="middle"))
    return svg.picture(
        top + high * max(1, len(rows)) + 8, heading.title, heading.subtitle, *parts, width=max(WIDTH, left + wide * len(columns))
    )


def scatter(heading: Heading, points: Sequence[tuple[float, float, float, float]], x_label: str, y_label: str) -> str:
    """Points of (x, y, lowest y, highest y); y is a rate from 0 to 1."""
    bottom, left, right, top = TOP + 250, 58, WIDTH - 8, TOP + 24
    x, y = scale([p[0] for p in points], left, right, zero=False), Scale(0.0, 1.0, bottom, top)
    parts = [svg.x_axis(x, bottom, top, x_label, 8), svg.y_axis(y, left, right, y_label)]
    parts.append(svg.strokes([(x(a), y(low), x(a), y(high) - 0.01) for a, _, low, high in points], svg.GREY, 1.2, 0.6))
    parts += [svg.tag("circle", cx=x(a), cy=y(b), r=3.6, fill=svg.BLUE, fill_opacity=0.85) for a, b, _, _ in points]
    return svg.picture(bottom + 40, heading.title, heading.subtitle, *parts)
