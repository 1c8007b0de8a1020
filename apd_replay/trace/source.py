"""A trace file becomes records: gzip, byte order mark and line ends are gone, every record knows its line.

Three shapes are read: JSON lines, one JSON value for the whole file (an array of records, or a single one), and CSV with a
header. Which of them it is, the file's first characters say.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from apd_replay.errors import InputError

GZIP_MAGIC = b"\x1f\x8b"
Shape = Literal["json_lines", "json_document", "csv"]


@dataclass(frozen=True, slots=True)
class Source:
    """A file's text and its shape. `header`: CSV only."""

    file: Path
    text: str
    shape: Shape
    header: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Broken:
    """A line that holds no record, and why."""

    line: int
    column: int | str | None
    problem: str


def open_source(file: Path) -> Source:
    """Read the whole file. Raises InputError where it is missing, cut off, not UTF-8 or empty."""
    text = _text(file)
    start = text.lstrip()[:1]
    if not start:
        raise InputError(file, "the file is empty", remedy="expected JSON lines, a JSON array, or CSV with a header")
    if start == "[":
        return Source(file, text, "json_document")
    if start == "{":
        return Source(file, text, "json_document" if _spread_over_lines(text) else "json_lines")
    try:
        header = next(csv.reader(io.StringIO(text, newline="")), [])
    except csv.Error as error:
        raise InputError(file, f"neither JSON nor CSV: {error}", line=1) from None
    return Source(file, text, "csv", tuple(name.strip() for name in header))


def records(source: Source) -> Iterator[tuple[int, dict[str, Any]] | Broken]:
    """(line from 1, record) for every record in file order; a Broken for what should have been one."""
    reader = {"json_lines": _json_lines, "json_document": _json_document, "csv": _csv_rows}[source.shape]
    return reader(source)


def _text(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(file, f"cannot be read: {error.strerror}") from None
    if data.startswith(GZIP_MAGIC):
        try:
            data = gzip.decompress(data)
        except EOFError:
            raise InputError(file, "the gzip stream is cut off: its end is missing", remedy="copy the file again") from None
        except (OSError, zlib.error) as error:
            raise InputError(file, f"the gzip stream is damaged: {error}", remedy="copy the file again") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(file, f"byte 0x{data[error.start]:02x} is not UTF-8", line=line, remedy="convert the file to UTF-8") from None


def _spread_over_lines(text: str) -> bool:
    """One pretty-printed object: its first line alone is no JSON, the whole text is."""
    first = next(filter(None, map(str.strip, text.split("\n"))))
    if first[-1:] == "}":
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _json_lines(source: Source) -> Iterator[tuple[int, dict[str, Any]] | Broken]:
    for line, text in enumerate(source.text.split("\n"), 1):  # never splitlines: U+2028 may stand inside a string
        text = text.strip()
        if not text:
            continue
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            yield Broken(line, error.colno, f"not valid JSON: {error.msg}")
        except (ValueError, RecursionError) as error:
            yield Broken(line, None, f"not valid JSON: {error}")
        else:
            yield (line, value) if isinstance(value, dict) else Broken(line, 1, "expected a JSON object")


def _json_document(source: Source) -> Iterator[tuple[int, dict[str, Any]] | Broken]:
    try:
        content = json.loads(source.text)
    except json.JSONDecodeError as error:
        raise InputError(source.file, f"not a JSON array: {error.msg}", line=error.lineno, column=error.colno,
                         remedy="expected one whole array of records, or one record a line (JSON lines)") from None
    except (ValueError, RecursionError) as error:
        raise InputError(source.file, f"not valid JSON: {error}") from None
    elements = content if isinstance(content, list) else [content]
    start = source.text.index("[") + 1 if isinstance(content, list) else 0
    for line, value in zip(_element_lines(source.text, start, len(elements)), elements, strict=True):
        yield (line, value) if isinstance(value, dict) else Broken(line, None, "expected a JSON object")


def _element_lines(text: str, start: int, count: int) -> Iterator[int]:
    """The line on which each element begins, from `start` on."""
    decoder, position, counted, line = json.JSONDecoder(), start, 0, 1
    for _ in range(count):
        while text[position] in " \t\r\n,":
            position += 1
        line += text.count("\n", counted, position)
        counted = position
        yield line
        position = decoder.raw_decode(text, position)[1]


def _csv_rows(source: Source) -> Iterator[tuple[int, dict[str, Any]] | Broken]:
    rows = csv.reader(io.StringIO(source.text, newline=""))
    line = 1
    try:
        next(rows)
        for row in rows:
            line, end = line + 1, rows.line_num
            if not row or row == [""]:
                pass
            elif len(row) != len(source.header):
                yield Broken(line, None, f"expected {len(source.header)} values, one a column of the header, found {len(row)}")
            else:
                yield line, dict(zip(source.header, row, strict=True))
            line = end
    except csv.Error as error:
        yield Broken(rows.line_num, None, f"not valid CSV: {error}")
