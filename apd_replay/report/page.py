"""A report becomes report.html, report.md and figures/*.svg. All foreign text is escaped here; the same report gives the same bytes."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from apd_replay import __version__
from apd_replay.report.model import Figure, Link, Report, Table
from apd_replay.report.numbers import listed, number, plain
from apd_replay.warehouse.database import write_text

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>()#+!|~&])")


def write(report: Report, folder: Path) -> None:
    """Every file whole, by rename; report.html last, so that it never shows figures that are not there."""
    figures = folder / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    svg_of = {f"{b.name}.svg": b.svg for s in report.sections for b in s.blocks if isinstance(b, Figure)}
    text_of = {"report.md": markdown(report), "report.html": html(report)}
    for name, svg in svg_of.items():
        write_text(figures / name, _standalone(svg))
    for old in figures.glob("*.svg"):
        if old.name not in svg_of:
            old.unlink(missing_ok=True)
    for name, text in text_of.items():
        write_text(folder / name, text)


def html(report: Report) -> str:
    environment = _environment(autoescape=True)
    style, script = _template("style.css"), _template("page.js")
    policy = f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'; form-action 'none'"
    text = environment.get_template("report.html.j2").render(
        report=report, version=__version__, policy=policy, style=Markup(style), script=Markup(script)
    )
    return text + "\n"


def markdown(report: Report) -> str:
    text = _environment(autoescape=False).get_template("report.md.j2").render(report=report)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _environment(*, autoescape: bool) -> Environment:
    environment = Environment(loader=PackageLoader("apd_replay.report"), autoescape=autoescape, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(
        plain=plain, number=number, listed=listed, raw=_raw, anchor=_anchor, lines=_lines, md=_md, numeric_columns=_numeric_columns
    )
    environment.tests.update(
        link=lambda v: isinstance(v, Link), text=lambda v: isinstance(v, str), kind=lambda block, name: type(block).__name__ == name
    )
    return environment


def _template(name: str) -> str:
    return (Path(__file__).with_name("templates") / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _raw(value: Any) -> str:
    """The exact value, for sorting and for whoever checks the page against the tables."""
    return repr(value)


def _numeric_columns(table: Table) -> set[int]:
    """Columns that hold a number somewhere and text nowhere: set to the right."""
    kinds = [{type(row[c]) for row in table.rows if row[c] is not None} for c in range(len(table.columns))]
    return {c for c, found in enumerate(kinds) if found and not found & {str, Link, bool}}


def _anchor(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-") or "section"


def _lines(text: str) -> str:
    return "\n".join(plain(row) for row in text.split("\n"))


def _md(value: Any) -> str:
    """Text inside a Markdown table: no markup, no line breaks, no HTML."""
    return _MARKDOWN.sub(r"\\\1", plain(value, 400)).replace("\\<", "&lt;").replace("\\>", "&gt;").replace("\\&", "&amp;")


def _standalone(svg: str) -> str:
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + svg + "\n"
