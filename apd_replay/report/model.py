"""A report before it is a page: sections of facts, tables and figures. HTML and Markdown are made from the same parts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Link:
    """A cell that leads to a file, relative to the report's folder."""

    text: str
    href: str


@dataclass(frozen=True)
class Table:
    """`rows` hold raw values: numbers, text, Link, None. How a number looks is the writer's part."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    folded: bool = False
    engine: str = ""


def without_empty_columns(table: Table) -> Table:
    kept = [c for c in range(len(table.columns)) if any(row[c] is not None for row in table.rows)]
    return replace(table, columns=[table.columns[c] for c in kept], rows=[[row[c] for c in kept] for row in table.rows])


@dataclass(frozen=True)
class Figure:
    """One picture. `name` is its file's stem; `table` holds its numbers; `query` gives every row behind it."""

    name: str
    engine: str
    title: str
    note: str
    svg: str
    table: Table
    query: str = ""


def stem(*parts: str) -> str:
    """A file's name, without its ending, for a figure. Names that lose a character get a digest, so that two never share a file."""
    whole = "-".join(parts)
    name = re.sub(r"[^A-Za-z0-9@._-]+", "-", whole)[:90].strip("-.")
    return name if name == whole else f"{name}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Facts:
    """Terms and what is to say about each."""

    rows: Sequence[tuple[str, str]]
    engine: str = ""


@dataclass(frozen=True)
class Note:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Heading:
    """A sub-heading: the runs of one engine on one trace."""

    text: str
    engine: str = ""


Block = Table | Figure | Facts | Note | Heading


@dataclass
class Section:
    id: str
    title: str
    verdicts: Sequence[tuple[str, str]] = ()
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True)
class Verdict:
    """One row of the verdict table, as it is shown."""

    claim: str
    statement: str
    verdict: str
    leaning: str
    engine: str
    trace: str
    n: int | None
    effect: str
    structural: str
    impact: str
    experiments: str
    confounders: Sequence[str]
    fix: str
    fix_effect: str
    notes: str
    runs: Sequence[str] = ()
    figures: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    title: str
    summary: Sequence[tuple[str, str]]
    verdicts: Sequence[Verdict]
    sections: Sequence[Section]
