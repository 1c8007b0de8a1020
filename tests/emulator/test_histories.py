"""Whose next turn is a prompt? From its tokens alone."""

from __future__ import annotations

from array import array
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apd_replay.emulator import histories
from apd_replay.emulator.histories import Histories, Place


def tokens(seed: int, count: int) -> array[int]:
    draw = Random(seed)
    return array("i", [draw.randrange(100, 1000) for _ in range(count)])


def test_a_prompt_continues_the_session_whose_history_it_repeats() -> None:
    known, prompt, output = Histories(), tokens(1, 100), tokens(2, 7)
    assert known.take(prompt, None, "a") == Place("a", 0, 0)
    known.answered("a", prompt, output)
    assert known.take(prompt + output + tokens(3, 50), None, "b") == Place("a", 1, 107)
    assert known.take(tokens(9, 100), None, "c") == Place("c", 0, 0)


def test_a_shared_head_does_not_make_two_sessions_one() -> None:
    known, head = Histories(), tokens(1, 400)
    sessions = {name: head + tokens(seed, 500) for name, seed in (("a", 2), ("b", 3), ("c", 4))}
    for name, prompt in sessions.items():
        assert known.take(prompt, None, name) == Place(name, 0, 0)
    for name, prompt in sessions.items():
        assert known.take(prompt + tokens(5, 10), None, "new") == Place(name, 1, 900)


def test_more_shared_than_own_still_finds_the_one_that_goes_on() -> None:
    known, head = Histories(), tokens(1, 900)
    first, second = head + tokens(2, 100), head + tokens(3, 100)
    known.take(first, "a", "a")
    known.take(second, "b", "b")
    assert known.take(first + tokens(4, 30), None, "new") == Place("a", 1, 1000)
    assert known.take(second + tokens(4, 30), None, "new") == Place("b", 1, 1000)


def test_a_named_session_is_believed_whatever_it_repeats() -> None:
    known = Histories()
    known.take(tokens(1, 100), "s", "x")
    assert known.take(tokens(1, 40) + tokens(2, 60), "s", "y") == Place("s", 1, 40)
    known.forget("s")
    assert known.take(tokens(1, 100), "s", "z") == Place("s", 0, 0)


def test_the_longest_unused_histories_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "MOST_BYTES", 4 * 250)
    known = Histories()
    for name, seed in (("a", 1), ("b", 2), ("c", 3)):
        known.take(tokens(seed, 100), None, name)
    assert known.take(tokens(1, 110), None, "new").session == "new"
    assert known.take(tokens(3, 110), None, "other").session == "c"
    assert len(known._sessions_of) == sum(len(h.heads) for h in known._known.values())


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 300))
def test_the_common_head_is_exact(shared: int, a: int, b: int) -> None:
    head = tokens(1, shared)
    left, right = head + array("i", [1] * a), head + array("i", [2] * b)
    assert histories._common_bytes(left.tobytes(), right.tobytes()) == 4 * shared
