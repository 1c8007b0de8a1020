"""What a test reads in a page: tags, attributes and cells, by Python's own HTML parser."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "br", "link", "img", "input", "hr"}


@dataclass
class Node:
    tag: str
    attributes: dict[str, str]
    children: list[Node] = field(default_factory=list)

    def all(self, tag: str | None = None) -> list[Node]:
        found = [n for child in self.children for n in ([child] if tag in (None, child.tag) else []) + child.all(tag)]
        return found

    @property
    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.text for part in self._parts).strip()

    def __post_init__(self) -> None:
        self._parts: list[str | Node] = []


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Node("", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {k: v or "" for k, v in attrs})
        self._open[-1].children.append(node)
        self._open[-1]._parts.append(node)
        if tag not in VOID:
            self._open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {k: v or "" for k, v in attrs})
        self._open[-1].children.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].tag == tag, f"<{self._open[-1].tag}> closed by </{tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1]._parts.append(data)


def page(results: Path) -> Node:
    """The page as a tree; every tag must be closed in its order."""
    reader = _Reader()
    reader.feed((results / "report/report.html").read_text(encoding="utf-8"))
    reader.close()
    assert reader._open == [reader.root]
    return reader.root


def cells(table: Node) -> list[list[str | float | None]]:
    """The body of a table: exact numbers where the page carries them, else text."""
    rows = []
    for row in next(n for n in table.all("tbody")).all("tr"):
        rows.append(
            [float(c.attributes["data-v"]) if "data-v" in c.attributes else None if c.text == "–" else c.text for c in row.all("td")]
        )
    return rows
