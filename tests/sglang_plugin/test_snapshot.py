"""The memory between scheduler and HTTP process: what is written is read, and a torn reading never passes."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from apd_replay.sglang_plugin import endpoints, snapshot
from apd_replay.sglang_plugin.admission import Numbers, Question
from apd_replay.sglang_plugin.settings import Settings

NUMBERS = Numbers(total_tokens=1000, available_tokens=100, held_tokens=300, running=2, waiting=1, prealloc_queue=3, transfer_queue=4, retracted_queue=0)


def test_a_reader_sees_what_was_written_last() -> None:
    memory = snapshot.open_memory(snapshot.create())
    assert snapshot.read(memory) is None
    writer = snapshot.Writer(memory)
    writer.write(NUMBERS, {"a": 10, "b": snapshot.UNDER_WAY, "ü": 30})
    writer.write(NUMBERS, {"a": 20})
    found = snapshot.read(memory)
    assert found is not None and found.numbers == NUMBERS
    assert (found.tokens_of("a"), found.tokens_of("b"), found.tokens_of("ü")) == (20, None, None)


def test_another_process_reads_it_and_nothing_stays_behind() -> None:
    path = snapshot.create()
    snapshot.Writer(snapshot.open_memory(path)).write(NUMBERS, {"a": 10})
    code = f"from apd_replay.sglang_plugin import snapshot; print(snapshot.read(snapshot.open_memory({path!r})).tokens_of('a'))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "10\n"
    assert path.startswith(f"/proc/{os.getpid()}/")


def test_a_writer_that_died_half_way_is_noticed() -> None:
    memory = snapshot.open_memory(snapshot.create())
    snapshot.Writer(memory).write(NUMBERS, {})
    struct.pack_into("<Q", memory, 0, 3)
    with pytest.raises(snapshot.Torn):
        snapshot.read(memory)
    assert endpoints.from_snapshot(Question("a", 1, 1), memory, Settings(admission="snapshot")) is None


class Raced(mmap.mmap):
    """Memory into which somebody writes just after the reader has read its head."""

    write: Callable[[], None] | None = None

    def __getitem__(self, key: Any) -> Any:
        write, self.write = self.write, None
        if write is not None:
            write()
        return super().__getitem__(key)


def test_a_reader_that_is_overtaken_reads_again() -> None:
    descriptor = os.open(snapshot.create(), os.O_RDWR)
    memory = Raced(descriptor, snapshot.SIZE)
    os.close(descriptor)
    writer = snapshot.Writer(memory)
    writer.write(NUMBERS, {"a": 1})
    newer = replace(NUMBERS, available_tokens=7)
    memory.write = lambda: writer.write(newer, {"a": 2})
    found = snapshot.read(memory)
    assert found is not None and found.numbers == newer and found.tokens_of("a") == 2


def test_readings_are_never_mixed_while_a_writer_is_at_work() -> None:
    memory = snapshot.open_memory(snapshot.create())
    writer, stop = snapshot.Writer(memory), threading.Event()

    def write() -> None:
        k = 0
        while not stop.is_set():
            k += 1
            writer.write(Numbers(k, k, k, k, k, k, k, k), dict.fromkeys(map(str, range(k % 50)), k))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        read = 0
        while read < 2000:
            try:
                found = snapshot.read(memory)
            except snapshot.Torn:
                continue
            if found is not None:
                read += 1
                assert {found.numbers.total_tokens, found.numbers.retracted_queue, *found.slots.values()} == {found.numbers.total_tokens}
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(("session", "appended", "admitted", "reason"), [
    ("a", 50, True, "admitted"),
    ("a", 120, True, "admitted"),  # 100 free, and b's 40 idle tokens make way
    ("a", 141, False, "no_space"),
    ("busy", 1, False, "busy"),
    ("cold", 1, False, "slot_lost"),
    ("unknown", 1, False, "no_session"),
])  # fmt: skip
def test_the_answer_from_the_snapshot(session: str, appended: int, admitted: bool, reason: str) -> None:
    memory = snapshot.open_memory(snapshot.create())
    snapshot.Writer(memory).write(NUMBERS, {"a": 200, "b": 40, "busy": snapshot.UNDER_WAY, "cold": 0})
    answer = endpoints.from_snapshot(Question(session, appended, 0), memory, Settings(admission="snapshot"))
    assert answer is not None
    assert (answer["can_admit"], answer["reason"]) == (admitted, reason)
    assert answer["queue_depth"] == 4 and answer["evicted_session_count"] == 0


def test_the_drain_hint_knows_the_rate_at_which_sessions_left() -> None:
    """250 tokens wanted, 100 free; sessions leave 50 tokens a second behind."""
    memory = snapshot.open_memory(snapshot.create())
    snapshot.Writer(memory).write(NUMBERS, {"a": 10}, drained_tokens_per_s=50.0)
    answer = endpoints.from_snapshot(Question("b", 250, 0), memory, Settings(admission="snapshot", hint="drain"))
    assert answer is not None and answer["recommended_pause_ms"] == pytest.approx(3000.0)
