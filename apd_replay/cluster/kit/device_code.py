"""Blank the device code that no run here loads, in a CUDA shared object.

A `.nv_fatbin` section is a row of containers (magic 0xBA55ED50, version, header size, payload size), each a row of entries
with their own headers; an entry is one cubin, plain or compressed. Kept are all headers, the file's size and its layout: the
loader walks them. The payload of an entry that is not kept becomes the file's smallest plain cubin of the same architecture
followed by zeros, which compress to nothing, and its header says `not compressed`.
Field offsets were read off the files themselves; an unknown file is refused by its checksum rather than guessed at.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from apd_replay.errors import RunError

CONTAINER = 0xBA55ED50
ELF_CODE = 2
COMPRESSED = 0x8000
ZEROS = 1 << 16


@dataclass(frozen=True)
class Entry:
    """One entry of a fatbin: where its header starts, header and payload bytes, kind, architecture (90 for sm_90)."""

    at: int
    header: int
    payload: int
    kind: int
    architecture: int

    @property
    def code(self) -> slice:
        return slice(self.at + self.header, self.at + self.header + self.payload)


def section(image: bytes | bytearray, name: bytes) -> tuple[int, int]:
    """Offset and size of a section of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    count, names = struct.unpack_from("<HH", image, 0x3C)
    (names_at,) = struct.unpack_from("<Q", image, table + names * 64 + 24)
    for header in range(table, table + count * 64, 64):
        (name_at,) = struct.unpack_from("<I", image, header)
        start = names_at + name_at
        if bytes(image[start : start + len(name) + 1]) == name + b"\0":
            offset, size = struct.unpack_from("<QQ", image, header + 24)
            return offset, size
    raise RunError(f"no section {name.decode()} in the file")


def entries(image: bytes | bytearray) -> Iterator[Entry]:
    at, size = section(image, b".nv_fatbin")
    end = at + size
    while at < end - 16:
        magic, _, header, payload = struct.unpack_from("<IHHQ", image, at)
        if magic != CONTAINER:
            at += 8  # containers are aligned to eight bytes
            continue
        inner, at = at + header, at + header + payload
        while inner < at:
            kind, _, head, code, _, _, _, _, architecture = struct.unpack_from("<HHIQIIHHI", image, inner)
            yield Entry(inner, head, code, kind, architecture)
            inner += head + code


def blank(source: Path, target: Path, sha256: str, architecture: int, kept: Collection[int]) -> None:
    """Write `source` to `target` with only the `kept` entries (counted from 1) whole. Raises RunError for another file than expected."""
    image = bytearray(source.read_bytes())
    if (found := hashlib.sha256(image).hexdigest()) != sha256:
        raise RunError(f"{source.name}: checksum {found[:16]}..., the recipe was read from {sha256[:16]}...; take that version, or list this one's entries anew")
    every = list(entries(image))
    if any(e.kind != ELF_CODE for e in every) or any(every[n - 1].architecture != architecture for n in kept):
        raise RunError(f"{source.name}: its entries are not what the recipe expects")
    plain = [e for e in every if e.architecture == architecture and image[e.code][:4] == b"\x7fELF"]
    filler = bytes(image[min(plain, key=lambda e: e.payload).code])
    for number, entry in enumerate(every, 1):
        if number in kept:
            continue
        code = filler if len(filler) <= entry.payload else b""
        image[entry.code] = code + bytes(entry.payload - len(code))
        (flags,) = struct.unpack_from("<Q", image, entry.at + 40)
        if flags & COMPRESSED:
            struct.pack_into("<I", image, entry.at + 16, 0)
            struct.pack_into("<Q", image, entry.at + 40, flags & ~COMPRESSED)
            struct.pack_into("<Q", image, entry.at + 56, 0)
    _write_sparse(image, target)


def _write_sparse(image: bytearray, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    empty = bytes(ZEROS)
    with target.open("wb") as out:
        for at in range(0, len(image), ZEROS):
            block = image[at : at + ZEROS]
            if block == empty[: len(block)]:
                out.seek(len(block), 1)
            else:
                out.write(block)
        out.truncate(len(image))
