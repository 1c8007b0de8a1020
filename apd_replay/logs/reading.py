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

    def count_lines(data: memoryview) -> int:
        return bytes(data).count(b"\n")


BLOCK_BYTES = 1 << 20  # few enough to stay in the processor's cache
LINE_LIMIT = 1 << 20  # a longer line is counted and not read
_ROTATED = re.compile(r"(?:\.gz|\.\d{1,4}|\.\d{4}-\d\d-\d\d(?:[_-]\d\d)?)+$")
_SUFFIX = re.compile(r"\.(?:log|txt|out|err|jsonl)$")


@dataclass(slots=True)
class Block:
    """Whole lines; `data` holds them until the next block is read. `over_long`: the head of one line that was too long to keep."""

    data: memoryview
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

    def _read(self, handle: IO[bytes], into: memoryview) -> int:
        """Up to a block of bytes; of a cut archive, all that can be unpacked."""
        into, size = into[:BLOCK_BYTES], 0
        try:
            if not isinstance(handle, gzip.GzipFile):
                size = handle.readinto(into)  # type: ignore[attr-defined]
            else:
                while size < len(into) and (part := handle.read1(len(into) - size)):
                    into[size : size + len(part)] = part
                    size += len(part)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.cut_gzip = True
        except OSError as error:
            raise InputError(self.path, f"cannot be read: {error.strerror or error}") from None
        self.size += size
        return size

    def _blocks(self, handle: IO[bytes]) -> Iterator[Block]:
        buffer = bytearray(LINE_LIMIT + BLOCK_BYTES)
        view = memoryview(buffer)
        held, offset, line = 0, 0, 1  # `held`: bytes at the start of the buffer that are not in a block yet
        more = True
        while more:
            count = self._read(handle, view[held:])
            held, more = held + count, count > 0
            end = buffer.rfind(b"\n", 0, held) + 1
            if end:
                yield Block(view[:end], offset, line)
                offset, line, held = offset + end, line + count_lines(view[:end]), held - end
                view[:held] = view[end : end + held]
            elif held > LINE_LIMIT:
                yield Block(view[:LINE_LIMIT], offset, line, over_long=True)
                held, dropped = self._skip(handle, buffer, view, held)
                offset, line = offset + dropped, line + 1
        if held:
            self.cut_last_line = True
            yield Block(view[:held], offset, line)
            line += 1
        self.lines = line - 1

    def _skip(self, handle: IO[bytes], buffer: bytearray, view: memoryview, dropped: int) -> tuple[int, int]:
        """Read up to the newline that ends an over-long line: how much behind it is in the buffer, and how long the line was."""
        while count := self._read(handle, view):
            end = buffer.find(b"\n", 0, count) + 1
            if end:
                view[: count - end] = view[end:count]
                return count - end, dropped + end
            dropped += count
        self.cut_last_line = True
        return 0, dropped


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
