"""`apd parse --explain`: what was understood, line by line. Text from logs is shown without terminal escapes."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click

from apd_replay.logs.parser import LogParser
from apd_replay.logs.reading import Reader, logs_in_order

_COLOURS = {"row": "green", "known": "blue", "cut": "yellow", "unknown": "red", "over_long": "red"}
_PLACE = ("file", "line", "offset", "launch", "tags", "detail", "rest")
_WIDTH = 160


def explain_files(files: list[Path]) -> None:
    for group in logs_in_order(files).values():
        parser = LogParser()
        for path in group:
            parser.start_file(path.name)
            _file(parser, path)


def _file(parser: LogParser, path: Path) -> None:
    print(printable(str(path)))
    reader = Reader(path)
    for block in reader.blocks():
        if block.over_long:
            parser.over_long(bytes(block.data), block.first_line)
            _show(block.first_line, "over_long", f"more than {len(block.data)} bytes: not read", bytes(block.data).decode(errors="replace"))
            continue
        offset = block.offset
        for number, raw in enumerate(bytes(block.data).removesuffix(b"\n").split(b"\n"), start=block.first_line):
            for cls, kind, row in parser.line(raw, number, offset) or [("known", "nothing", None)]:
                _show(number, cls, kind + _columns(row), raw.decode(errors="replace"))
            offset += len(raw) + 1
        parser.take()
    counts = Counter(parser.lines)
    print(f"  {sum(counts.values())} lines: " + ", ".join(f"{n} {cls}" for cls, n in sorted(counts.items())) + f"; role: {parser.role or 'not said'}")


def _show(number: int, cls: str, understood: str, text: str) -> None:
    word = click.style(f"{cls:9}", fg=_COLOURS[cls]) if sys.stdout.isatty() else f"{cls:9}"
    print(f"{number:7} {word} {printable(understood)}")
    print(f"{'':7} {'':9}   | {printable(text[:_WIDTH])}")


def _columns(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    shown = {name: value for name, value in row.items() if value is not None and name not in _PLACE and name != "kind"}
    shown |= {name: row[name] for name in ("tags", "rest") if row.get(name)}
    return ": " + ", ".join(f"{name}={value}" for name, value in shown.items())


def printable(text: str) -> str:
    """Control characters (terminal escapes among them) and text-direction marks made visible instead of sent to the terminal."""
    return "".join(c if c.isprintable() or c == " " else c.encode("unicode_escape").decode() for c in text)
