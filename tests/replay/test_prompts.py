"""Tokens of prompts: the same for the same key, for ever, or stored runs and new ones could not be compared."""

from __future__ import annotations

from array import array
from random import Random

from apd_replay.replay.prompts import FIRST_TOKEN, LAST_TOKEN, as_json, draw


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
