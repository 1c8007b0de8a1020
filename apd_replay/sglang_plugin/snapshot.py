"""A worker's numbers and slots in memory that its HTTP process reads without asking the scheduler and without a lock.

One writer (the scheduler), any number of readers. The sequence number is odd while a write is under way; a reader that meets an odd
number, or another one after reading, reads again. Layout, little endian: sequence (u64), count of sessions (u64), monotonic time (f64),
rate at which sessions leave (f64, tokens/s), the numbers (8 x i64), then each open session, 16 bytes: the digest of its name (8 bytes),
tokens kept (i64; -1: a turn is under way, 0: nothing is kept).
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import lru_cache
from hashlib import blake2b

from apd_replay.sglang_plugin.admission import Numbers

VARIABLE = "APD_SGLANG_SNAPSHOT"  # where the memory is; set by the first process of a server for its children
CAPACITY = 8192  # sessions; one that does not fit is unknown to a reader

_HEAD = struct.Struct("<QQdd8q")
_SLOT = struct.Struct("<8sq")
_SEQUENCE = struct.Struct("<Q")
SIZE = _HEAD.size + CAPACITY * _SLOT.size
TRIES = 1000
UNDER_WAY = -1


class Torn(Exception):
    """No consistent reading: the writer died in the middle of a write."""


@dataclass(frozen=True, slots=True)
class Reading:
    """`slots`: tokens kept, by digest of the session's name."""

    mono_s: float
    drained_tokens_per_s: float
    numbers: Numbers
    slots: dict[bytes, int]

    def tokens_of(self, session: str) -> int | None:
        return self.slots.get(digest(session))


@lru_cache(2 * CAPACITY)  # the writer asks for each session's once a scheduler step
def digest(session: str) -> bytes:
    return blake2b(session.encode(), digest_size=8).digest()


def create() -> str:
    """Anonymous memory that goes with this process, however it ends; other processes of the same user open it by the returned path."""
    descriptor = os.memfd_create("apd-snapshot")
    os.ftruncate(descriptor, SIZE)
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def open_memory(path: str) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, SIZE)
    finally:
        os.close(descriptor)


class Writer:
    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._sequence = 0

    def write(self, numbers: Numbers, slots: Mapping[str, int], drained_tokens_per_s: float = 0.0) -> None:
        body = b"".join(_SLOT.pack(digest(name), tokens) for name, tokens in list(slots.items())[:CAPACITY])
        self._sequence += 2
        _SEQUENCE.pack_into(self._memory, 0, self._sequence - 1)
        self._memory[_HEAD.size : _HEAD.size + len(body)] = body
        _HEAD.pack_into(self._memory, 0, self._sequence - 1, len(body) // _SLOT.size, time.monotonic(), drained_tokens_per_s, *astuple(numbers))
        _SEQUENCE.pack_into(self._memory, 0, self._sequence)


def read(memory: mmap.mmap) -> Reading | None:
    """None: nothing written yet. Raises Torn."""
    for _ in range(TRIES):
        sequence, count, mono_s, drained, *numbers = _HEAD.unpack_from(memory, 0)
        if sequence == 0:
            return None
        if sequence % 2:
            continue
        body = memory[_HEAD.size : _HEAD.size + min(count, CAPACITY) * _SLOT.size]
        if _SEQUENCE.unpack_from(memory, 0)[0] == sequence:
            return Reading(mono_s, drained, Numbers(*numbers), dict(_SLOT.iter_unpack(body)))
    raise Torn
