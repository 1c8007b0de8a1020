"""A log's bytes in blocks of whole lines, plain or gzip, in bounded memory whatever a line's length."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from apd_replay.errors import InputError

try:
    from apd_replay.logs._scan import count_lines
except ImportError:  # nothing was compiled

    def count_lines(data: bytes) -> int:
        return data.count(b"\n")


BLOCK_BYTES = 1 << 20  # few enough to stay in the processor's cache
LINE_LIMIT = 1 << 20  # a longer line is counted and not read
_ROTATED = re.compile(r"(?:\.gz|\.\d{1,4}|\.\d{4}-\d\d-\d\d(?:[_-]\d\d)?)+$")
_SUFFIX = re.compile(r"\.(?:log|txt|out|err|jsonl)$")


@dataclass(slots=True)
class Block:
    """Whole lines. `over_long`: the block holds the head of one line that was too long to keep, and nothing else."""

    data: bytes
    offset: int
    first_line: int
    over_long: bool = False


class Reader:
    """Blocks of one file. After the last one `size` and `cut_last_line` are right. `cut_gzip`: the archive ends too early."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.lines = 0  # counted by the reader itself, to check the parser's books
        self.cut_last_line = False
        self.cut_gzip = False

    def blocks(self) -> Iterator[Block]:
        with self._open() as handle:
            yield from self._blocks(handle)

    def _open(self) -> IO[bytes]:
        try:
            handle = open(self.path, "rb", buffering=0)  # noqa: SIM115 (the caller closes it)
            if handle.read(2) != b"\x1f\x8b":
                handle.seek(0)
                return handle
            handle.close()
            return gzip.open(self.path, "rb")  # type: ignore[return-value]
        except OSError as error:
            raise InputError(self.path, f"cannot be read: {error.strerror or error}") from None

    def _read(self, handle: IO[bytes]) -> bytes:
        """Up to a block of bytes; of a cut archive, all that can be unpacked."""
        parts: list[bytes] = []
        size = 0
        try:
            if not isinstance(handle, gzip.GzipFile):
                return handle.read(BLOCK_BYTES) or b""
            while size < BLOCK_BYTES and (part := handle.read1(BLOCK_BYTES - size)):
                parts.append(part)
                size += len(part)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.cut_gzip = True
        except OSError as error:
            raise InputError(self.path, f"cannot be read: {error.strerror or error}") from None
        return b"".join(parts)

    def _blocks(self, handle: IO[bytes]) -> Iterator[Block]:
        carry, offset, line = b"", 0, 1
        while data := self._read(handle):
            self.size += len(data)
            end = data.rfind(b"\n") + 1
            if not end:
                carry += data
                if len(carry) > LINE_LIMIT:
                    head, tail, dropped = carry[:LINE_LIMIT], *self._skip(handle, len(carry))
                    yield Block(head, offset, line, over_long=True)
                    offset, line, carry = offset + dropped, line + 1, tail
                continue
            block = b"".join((carry, memoryview(data)[:end]))
            yield Block(block, offset, line)
            offset, line, carry = offset + len(block), line + count_lines(block), data[end:]
        if carry:
            self.cut_last_line = True
            yield Block(carry, offset, line, over_long=len(carry) > LINE_LIMIT)
            line += 1
        self.lines = line - 1

    def _skip(self, handle: IO[bytes], dropped: int) -> tuple[bytes, int]:
        """Read up to the newline that ends an over-long line: what follows it, and how long the line was."""
        while data := self._read(handle):
            self.size += len(data)
            end = data.find(b"\n") + 1
            if end:
                return data[end:], dropped + end
            dropped += len(data)
        self.cut_last_line = True
        return b"", dropped


def worker_name(path: Path) -> str:
    """`decode-0` of decode-0.log, decode-0.log.1, decode-0.log.2026-11-29.gz."""
    name = _ROTATED.sub("", path.name)
    return _SUFFIX.sub("", name) or path.name


def logs_in_order(paths: list[Path]) -> dict[str, list[Path]]:
    """Files of one log together, oldest first: rotation numbers count backwards, dates forwards, the plain file is the newest."""

    def age(path: Path) -> tuple[int, str]:
        rotated = re.search(r"\.(\d{1,4})(?:\.gz)?$", path.name)
        dated = re.search(r"\.(\d{4}-\d\d-\d\d(?:[_-]\d\d)?)(?:\.gz)?$", path.name)
        if dated:
            return 0, dated[1]
        return (-int(rotated[1]), "") if rotated else (1, "")

    groups: dict[str, list[Path]] = {}
    for path in sorted(paths, key=lambda p: (str(p.parent), worker_name(p), age(p), p.name)):
        groups.setdefault(f"{path.parent}/{worker_name(path)}", []).append(path)
    return groups
