"""Numbers and foreign text as a reader sees them: three significant digits, thousands separators, nothing invisible."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

MISSING = "–"
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def number(value: Any) -> str:
    """`1.426` is `1.43`, `62043.2` is `62,043`, null is a dash. Whole digits are never rounded away."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return plain(value)
    if math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size == 0:
        return "0"
    if isinstance(value, int) or size >= 100 or value == int(value):
        return f"{value:,.0f}".replace("-", "−")
    if size < 0.0001:
        return f"{value:.2e}".replace("-", "−")
    decimals = max(0, 2 - math.floor(math.log10(size)))
    return f"{value:.{decimals}f}".replace("-", "−")


def tick(value: float) -> str:
    """A number on an axis: no zeros at its end."""
    text = number(value)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def interval(low: Any, high: Any) -> str:
    return "" if low is None or high is None else f"[{number(low)}, {number(high)}]"


def estimate(value: Any, low: Any = None, high: Any = None, unit: str | None = None) -> str:
    """`2.32 [2.11, 2.55] ratio`; the interval and the unit only where there are any."""
    if value is None:
        return MISSING
    return " ".join(filter(None, (number(value), interval(low, high), plain(unit) if unit else "")))


def listed(texts: Iterable[str]) -> str:
    """Sentences as one line: `a; b`."""
    return "; ".join(text.rstrip(".") for text in texts)


def moment(ts: float | None) -> str:
    """UTC time of an epoch second."""
    if ts is None or not math.isfinite(ts):
        return MISSING
    try:
        return datetime.fromtimestamp(ts, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return MISSING


def plain(value: Any, limit: int | None = None) -> str:
    """Text from a trace or a log, safe to show: control and direction characters become visible escapes, length is bounded.

    Escaping for HTML, SVG or Markdown is still the writer's part.
    """
    text = "" if value is None else str(value)
    text = "".join(c if unicodedata.category(c) not in _INVISIBLE else f"\\u{ord(c):04x}" for c in text)
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"
