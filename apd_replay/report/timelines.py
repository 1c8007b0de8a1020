"""Charts over a run's time: spans and marks in rows, and the pools of the workers. As charts.py: data in, SVG out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from apd_replay.report import svg
from apd_replay.report.charts import Heading
from apd_replay.report.numbers import number, tick
from apd_replay.report.svg import TITLE_HEIGHT as TOP
from apd_replay.report.svg import WIDTH, Scale, scale


@dataclass(frozen=True)
class Strip:
    """One row of `strips`: a label, spans of (start, end, kind) and marks of (time, kind)."""

    label: str
    spans: Sequence[tuple[float, float, str]]
    marks: Sequence[tuple[float, str]] = ()
    note: str = ""


def strips(
    heading: Heading,
    rows: Sequence[Strip],
    kinds: Mapping[str, str],
    mark_kinds: Mapping[str, tuple[str, float]],
    label: str,
    *,
    step: float = 10.0,
    note_title: str = "",
) -> str:
    """Rows over time: spans coloured by kind, marks as ticks that reach out of their row. `kinds`: name -> colour, `mark_kinds`: name -> (colour, width)."""
    left = min(210.0, 14 + max((min(svg.text_width(r.label, 9), 196) for r in rows), default=60))
    right = WIDTH - (96 if any(r.note for r in rows) else 10)
    key, more = svg.legend([*kinds.items(), *((name, color) for name, (color, _) in mark_kinds.items())], left, TOP + 8)
    top = TOP + 34 + more
    bottom = top + step * max(1, len(rows)) + 4
    times = [t for r in rows for a, b, _ in r.spans for t in (a, b)] + [t for r in rows for t, _ in r.marks]
    x = scale(times, left, right, room=0.01)
    parts = [key, svg.x_axis(x, bottom, top, label, 8)]
    middle = [top + step * (k + 0.5) for k in range(len(rows))]
    for kind, color in kinds.items():
        segments = [(x(a), y, max(x(b), x(a) + 0.8), y) for y, r in zip(middle, rows, strict=True) for a, b, k in r.spans if k == kind]
        parts.append(svg.strokes(segments, color, step * 0.62))
    for kind, (color, width) in mark_kinds.items():
        ticks = [(x(t), y - step * 0.48, x(t), y + step * 0.48) for y, r in zip(middle, rows, strict=True) for t, k in r.marks if k == kind]
        parts.append(svg.strokes(ticks, color, width))
    for y, row in zip(middle, rows, strict=True):
        parts.append(svg.words(left - 6, y + 3.2, row.label, size=9, anchor="end", limit=30))
        if row.note:
            parts.append(svg.words(right + 6, y + 3.2, row.note, size=9, opacity=0.85))
    if note_title:
        parts.append(svg.words(right + 6, top - 4, note_title, size=9, opacity=0.85))
    return svg.picture(bottom + 38, heading.title, heading.subtitle, *parts)


@dataclass(frozen=True)
class Panel:
    """One worker of `usage`: (time, low, high) of its pool in each step of time, and its events by kind."""

    label: str
    usage: Sequence[tuple[float, float, float]]
    events: Mapping[str, Sequence[float]]


def usage(heading: Heading, panels: Sequence[Panel], kinds: Mapping[str, str], label: str) -> str:
    """Pool usage of each worker over time (from 0 to 1; a step's lowest to highest), its events on rails below. `kinds`: event -> colour."""
    plot, rail, gap, left, right = 46.0, 9.5, 14.0, 88.0, WIDTH - 92.0
    top = TOP + 34
    height = plot + rail * len(kinds) + gap
    bottom = top + height * max(1, len(panels)) - gap + 6
    times = [t for p in panels for t, _, _ in p.usage] + [t for p in panels for ts in p.events.values() for t in ts]
    x = scale(times, left, right, room=0.01)
    parts = [svg.legend([("usage", svg.BLUE), *kinds.items()], left, TOP + 8)[0], svg.x_axis(x, bottom, top, label, 8)]
    for k, panel in enumerate(panels):
        y0 = top + height * k + plot
        y = Scale(0.0, 1.0, y0, y0 - plot)
        parts += [svg.words(0, y0 - plot / 2 + 4, panel.label, weight="600", limit=12)]
        for v in (0.0, 0.5, 1.0):
            parts += [
                svg.line(left, y(v), right, y(v), opacity=0.15),
                svg.words(left - 5, y(v) + 3, tick(v), size=8, anchor="end", opacity=0.8),
            ]
        if panel.usage:
            parts.append(svg.strokes([(x(t), y(low) + 0.5, x(t), y(high) - 0.5) for t, low, high in panel.usage], svg.SKY, 1.6, 0.75))
            parts.append(svg.path([(x(t), y(high)) for t, _, high in panel.usage], svg.BLUE, width=1.1))
            parts.append(svg.words(right + 8, y0 - plot + 9, f"peak {max(h for _, _, h in panel.usage):.2f}", size=9.5))
        else:
            parts.append(
                svg.words((left + right) / 2, y0 - plot / 2 + 4, "no usage lines in this run's logs", size=10, anchor="middle", opacity=0.7)
            )
        for r, (kind, color) in enumerate(kinds.items()):
            at = y0 + rail * (r + 0.55)
            events = panel.events.get(kind, ())
            parts.append(svg.strokes([(x(t), at - rail * 0.38, x(t), at + rail * 0.38) for t in events], color, 1.2))
            parts.append(svg.words(right + 8, at + 3, f"{kind} {number(len(events))}", size=8.5, opacity=1.0 if events else 0.45))
    return svg.picture(bottom + 38, heading.title, heading.subtitle, *parts)
