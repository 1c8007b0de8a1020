"""The admission answer's arithmetic and its hints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from apd_replay.sglang_plugin.admission import Numbers, Question, answer
from apd_replay.sglang_plugin.settings import Settings

NUMBERS = Numbers(total_tokens=1000, available_tokens=400, held_tokens=300, running=2, waiting=1, prealloc_queue=3, transfer_queue=4, retracted_queue=0)


def ask(appended: int = 100, reserve: int = 50, history: int | None = 200, resident: int | None = 200, refusal: str = "", hint: str = "off",
        numbers: Numbers = NUMBERS) -> dict[str, Any]:
    return answer(Question("s", appended, reserve, history), numbers, resident, refusal, 2, Settings(hint=hint).pause_ms())


def test_what_fits_is_admitted() -> None:
    found = ask()
    assert found["can_admit"] and found["reason"] == "admitted" and found["needed_tokens"] == 150
    assert (found["available_tokens"], found["held_tokens"], found["resident_tokens"], found["evicted_session_count"]) == (400, 300, 200, 2)
    assert (found["queue_depth"], found["prealloc_queue"], found["retracted_queue"], found["running"], found["waiting"]) == (4, 3, 0, 2, 1)
    assert found["token_usage"] == pytest.approx(0.6) and found["token_usage_after"] == pytest.approx(0.75)


@pytest.mark.parametrize(("available", "admitted"), [(150, True), (149, False)])
def test_the_last_token_decides(available: int, admitted: bool) -> None:
    found = ask(numbers=replace(NUMBERS, available_tokens=available))
    assert found["can_admit"] is admitted and found["reason"] == ("admitted" if admitted else "no_space")


@pytest.mark.parametrize(("yielding", "admitted"), [(100, True), (99, False)])
def test_slots_that_will_make_way_count_as_room_and_not_as_free(yielding: int, admitted: bool) -> None:
    found = answer(Question("s", 500, 0, 200), NUMBERS, 200, "", 0, Settings(hint="drain").pause_ms(), 1.0, yielding_tokens=yielding)
    assert found["can_admit"] is admitted and found["available_tokens"] == 400
    assert found["recommended_pause_ms"] == (0.0 if admitted else 1000.0)


def test_history_that_is_not_kept_is_needed_too() -> None:
    assert ask(history=250, resident=200)["needed_tokens"] == 200
    assert ask(history=None, resident=7)["needed_tokens"] == 150
    assert ask(history=100, resident=200)["needed_tokens"] == 150


def test_a_session_that_is_not_here_is_refused_whatever_fits() -> None:
    found = ask(refusal="no_session", resident=None)
    assert not found["can_admit"] and found["reason"] == "no_session" and found["resident_tokens"] is None


@pytest.mark.parametrize(("hint", "changes", "pause_ms"), [
    ("off", {"transfer_queue": 20, "retracted_queue": 1}, 0.0),
    ("linear", {"transfer_queue": 7}, 0.0),
    ("linear", {"transfer_queue": 9}, 900.0),
    ("composite", {"transfer_queue": 9}, 900.0),
    ("composite", {"retracted_queue": 1}, 1500.0),
    ("composite", {"available_tokens": 200}, 250.0),  # (800 + 150) / 1000 is 0.05 above 0.90; 1000 units in a usage of 1; times 5
])  # fmt: skip
def test_the_pause_is_the_seeds_formula(hint: str, changes: dict[str, int], pause_ms: float) -> None:
    assert ask(hint=hint, numbers=replace(NUMBERS, **changes))["recommended_pause_ms"] == pytest.approx(pause_ms)


@pytest.mark.parametrize(("body", "word"), [
    ([], "object"), ({"appended_tokens": 3}, "session"), ({"session": "", "appended_tokens": 3}, "session"), ({"session": "a"}, "appended_tokens"),
    ({"session": "a", "appended_tokens": -1}, "appended_tokens"), ({"session": "a", "appended_tokens": True}, "appended_tokens"),
    ({"session": "a", "appended_tokens": 1, "output_reserve_tokens": "5"}, "output_reserve_tokens"),
])  # fmt: skip
def test_a_wrong_question_is_named(body: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Question.of(body)


def test_a_question_ignores_what_it_does_not_know() -> None:
    assert Question.of({"session": "a", "appended_tokens": 1, "rid": "a-1"}) == Question("a", 1, 0, None)


def test_the_drain_hint_is_the_time_until_the_room_is_there() -> None:
    """1,450 tokens wanted (history, append, reserve), 600 available; sessions leave 100 tokens a second behind."""
    question, numbers = Question("s", 100, 50, 1300), replace(NUMBERS, available_tokens=600)
    found = answer(question, numbers, None, "no_session", 0, Settings(hint="drain").pause_ms(), drained_tokens_per_s=100.0)
    assert found["recommended_pause_ms"] == pytest.approx(8500.0)
    assert answer(question, replace(NUMBERS, available_tokens=1500), None, "no_session", 0, Settings(hint="drain").pause_ms())["recommended_pause_ms"] == 0.0
