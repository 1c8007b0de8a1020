"""The few SVG parts that our charts are made of: elements, scales, axes.

No style sheet and no script: presentation attributes only, so that a figure looks the same inside the page and as a file.
Text and axes take `currentColor`, the page's own. Data colours are Okabe and Ito's, told apart by colour-blind readers and in grey print.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from apd_replay.report.numbers import plain, tick

BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8a8a8a"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, GREY)
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
WIDTH = 760
TITLE_HEIGHT = 46


def tag(name: str, *children: str, **attributes: object) -> str:
    """One element. Attribute names use `_` for `-`; values are escaped, children are taken as they are."""
    text = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_short(value))}"' for key, value in attributes.items() if value is not None
    )
    return f"<{name}{text}>{''.join(children)}</{name}>" if children else f"<{name}{text}/>"


def _short(value: object) -> str:
    """Coordinates with two decimals: the same bytes on every machine, and small files."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".") if math.isfinite(value) else "0"
    return str(value)


def words(
    x: float,
    y: float,
    text: object,
    *,
    size: float = 11,
    anchor: str = "start",
    weight: str | None = None,
    limit: int | None = None,
    opacity: float | None = None,
    turn: float | None = None,
) -> str:
    """Text at a point; what `limit` cuts off is kept as a tooltip."""
    full = plain(text)
    shown = plain(text, limit)
    tip = tag("title", escape(plain(text, 400))) if shown != full else ""
    return tag(
        "text",
        tip + escape(shown),
        x=x,
        y=y,
        font_size=size,
        text_anchor=anchor,
        font_weight=weight,
        fill="currentColor",
        fill_opacity=opacity,
        transform=f"rotate({turn:g} {x:.2f} {y:.2f})" if turn else None,
    )


def line(
    x1: float,
    y1: float,
    x2: float,
    y2: float,
    *,
    opacity: float = 1.0,
    width: float = 1.0,
    dash: str | None = None,
    color: str = "currentColor",
) -> str:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=color, stroke_opacity=opacity, stroke_width=width, stroke_dasharray=dash)


def path(points: Iterable[tuple[float, float]], color: str, *, width: float = 1.5, dash: str | None = None) -> str:
    d = "L".join(f"{_short(float(x))} {_short(float(y))}" for x, y in points)
    return (
        tag("path", d=f"M{d}", fill="none", stroke=color, stroke_width=width, stroke_linejoin="round", stroke_dasharray=dash) if d else ""
    )


def strokes(segments: Iterable[tuple[float, float, float, float]], color: str, width: float, opacity: float = 1.0) -> str:
    """Many straight strokes as one element: 4,000 requests in some 60 kB."""
    d = "".join(
        f"M{_short(float(x1))} {_short(float(y1))}" + (f"H{_short(float(x2))}" if y1 == y2 else f"L{_short(float(x2))} {_short(float(y2))}")
        for x1, y1, x2, y2 in segments
    )
    return tag("path", d=d, fill="none", stroke=color, stroke_width=width, stroke_opacity=opacity) if d else ""


def picture(height: float, title: str, subtitle: str, *parts: str, width: float = WIDTH) -> str:
    """A whole figure: its title says what is shown, its subtitle which experiment, engine and N."""
    head = words(0, 15, title, size=14, weight="600", limit=100) + words(0, 33, subtitle, size=11, opacity=0.75, limit=130)
    return tag(
        "svg",
        tag("title", escape(plain(f"{title}. {subtitle}"))) + head,
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_short(float(width))} {_short(float(height))}",
        width=width,
        height=height,
        font_family=FONT,
        role="img",
    )


def legend(entries: Sequence[tuple[str, str]], x: float, y: float, right: float = WIDTH) -> tuple[str, float]:
    """Colour and name, in rows from `x` to `right`; and how far below `y` the last row stands."""
    out, start, row = [], x, y
    for name, color in entries:
        shown = plain(name, 40)
        width = 14 + text_width(shown, 11)
        if x > start and x + width > right:
            x, row = start, row + 15
        out += [tag("rect", x=x, y=row - 9, width=10, height=10, fill=color), words(x + 14, row, shown, size=11)]
        x += width + 12
    return "".join(out), row - y


def text_width(text: object, size: float) -> float:
    """About as wide as a sans-serif font draws it."""
    return sum(0.62 if ord(c) < 0x2E80 else 1.0 for c in plain(text)) * size


@dataclass(frozen=True)
class Scale:
    """Values to pixels. `log` needs a positive range."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Pixel of a value; values outside are held at the edge, so that `inf` stands at the end of the axis."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        return _log_ticks(self.low, self.high) if self.log else _ticks(self.low, self.high, about)


def scale(values: Iterable[float | None], start: float, end: float, *, log: bool = False, zero: bool = True, room: float = 0.04) -> Scale:
    """A scale that holds every finite value, with a little room; with `zero`, a linear one starts at 0."""
    finite = [v for v in values if v is not None and math.isfinite(v) and (v > 0 or not log)]
    low, high = (min(finite), max(finite)) if finite else (0.1, 1.0) if log else (0.0, 1.0)
    if log:
        grow = max((high / low) ** room, 1.1)
        return Scale(low / grow, high * grow, start, end, True)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high == low:
        high = low + (abs(low) or 1.0)
    spare = (high - low) * room
    return Scale(low if zero and low == 0 else low - spare, high + spare, start, end)


def _ticks(low: float, high: float, about: int) -> list[float]:
    raw = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) + 0.0 for k in range(first, first + 3 * about + 9) if k * step <= high + step * 1e-9]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = math.log10(high / low)
    steps: tuple[float, ...] = (
        (1,) if decades > 4 else (1, 3) if decades > 2 else (1, 2, 5) if decades > 0.5 else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
    )
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high))
    return [v for e in range(first, last + 1) for m in steps if low <= (v := float(f"{m}e{e}")) <= high]


def x_axis(s: Scale, y: float, top: float, label: str, about: int = 6) -> str:
    """Ticks under `y`, grid lines up to `top`, and what the axis shows, unit included."""
    out = [line(s.start, y, s.end, y, opacity=0.5)]
    for v in s.ticks(about):
        x = s(v)
        out += [line(x, y, x, top, opacity=0.12), words(x, y + 14, tick(v), size=10, anchor="middle", opacity=0.8)]
    out.append(words((s.start + s.end) / 2, y + 30, label, size=11, anchor="middle"))
    return "".join(out)


def y_axis(s: Scale, x: float, right: float, label: str, about: int = 5) -> str:
    """Ticks left of `x`, grid lines to `right`; the label stands above the axis, where it is read without turning the head."""
    out = []
    for v in s.ticks(about):
        y = s(v)
        out += [line(x, y, right, y, opacity=0.12), words(x - 6, y + 3.5, tick(v), size=10, anchor="end", opacity=0.8)]
    out.append(words(0, s.end - 9, label, size=11))
    return "".join(out)
