"""Tokens of prompts: the same for the same key, for ever, or stored runs and new ones could not be compared."""

from __future__ import annotations

from array import array
from random import Random

import pytest

from apd_replay.replay.core import Request
from apd_replay.replay.prompts import FIRST_TOKEN, LAST_TOKEN, Prompts, as_json, draw
from apd_replay.trace.model import Trace


def test_drawn_tokens_follow_from_their_key_alone() -> None:
    for key, count in (("a", 1000), ("1:s:0", 1), ("", 0)):
        bytes_ = Random(key).randbytes(2 * count)
        expected = [100 + int.from_bytes(bytes_[k : k + 2], "little") % 900 for k in range(0, 2 * count, 2)]
        assert draw(key, count) == array("i", expected)
    drawn = draw("b", 50_000)
    assert (min(drawn), max(drawn)) == (FIRST_TOKEN, LAST_TOKEN)


def test_a_prompts_json_holds_any_vocabulary() -> None:
    assert as_json(array("i", [100, 999])) == b"100,999"
    assert as_json([5, 151_643, 100]) == b"5,151643,100"
    assert as_json([]) == b""


@pytest.mark.parametrize("generated", [True, False])
def test_a_prompt_repeats_what_its_session_shares_and_no_more(generated: bool) -> None:
    """Three tokens and an answer of two; the next prompt keeps all five, the one after only two (a compaction), the last none."""
    prompts = Prompts(Trace("t", "", ()), 1, generated=generated)
    answer = [7, 151_643]
    first = prompts.build(turn(0, 3, 0))
    prompts.answered(turn(0, 3, 0), first, answer)
    second = prompts.build(turn(1, 8, 5))
    stand_in = draw("1:answer:s-0", 2).tolist()
    assert numbers(second)[:5] == [*numbers(first), *(answer if generated else stand_in)] and len(numbers(second)) == 8
    prompts.answered(turn(1, 8, 5), second, None)  # failed: a stand-in takes the answer's place
    third = prompts.build(turn(2, 6, 2))
    assert numbers(third)[:2] == numbers(first)[:2] and len(numbers(third)) == 6 and numbers(third)[2] != numbers(second)[2]
    prompts.answered(turn(2, 6, 2), third, answer)
    assert prompts.build(turn(3, 4, 0)) == Prompts(Trace("t", "", ()), 1, generated=generated).build(turn(3, 4, 0)), "nothing of the history is left"


def turn(number: int, tokens: int, history: int) -> Request:
    return Request(f"s-{number}", "s", number, tokens, 2, None, None, 0.0, history_tokens=history)


def numbers(prompt: bytes) -> list[int]:
    return [int(token) for token in prompt.split(b",")]
