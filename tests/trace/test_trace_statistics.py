"""Figures of a trace: by hand on small ones, against published ones on the real files where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from apd_replay.trace.reading import read
from apd_replay.trace.statistics import quantile, statistics

TRACES = Path(__file__).parent.parent.parent.parent / "shared" / "data" / "traces"
no_folder = pytest.mark.skipif(not TRACES.is_dir(), reason="../shared/data/traces is not here")


@pytest.mark.parametrize(("q", "value"), [(0.0, 1.0), (0.5, 2.5), (0.9, 7.9), (1.0, 10.0)])
def test_quantiles_are_interpolated(q: float, value: float) -> None:
    assert quantile([1, 2, 3, 10], q) == pytest.approx(value)
    assert quantile([], q) is None and quantile([7], q) == 7.0


def test_figures(write: Any, turn: Any) -> None:
    found = statistics(read(write("f.jsonl", turn("a", 1, 10.0, 100, 5), turn("a", 2, 14.0, 90, 5), turn("a", 3, 20.0, 92, 0), turn("b", 1, 11.0, 7, 1)))[0])
    assert (found["requests"], found["sessions"], found["span_s"], found["gaps"], found["gaps_arrival"]) == (4, 2, 10.0, 2, 2)
    assert (found["input_tokens"], found["output_tokens"], found["zero_outputs"]) == (289, 11, 1)
    assert (found["prompt_shrinks"], found["shorter_than_history"], found["shared_unknown"]) == (1, 2, 2)
    assert found["peak_tokens"]["max"] == 100 and found["turns_per_session"]["p50"] == 2.0
    assert found["idle_share"] is None, "differences of sends say nothing about idling"


def test_idle_share_where_answers_are_timed(write: Any, turn: Any) -> None:
    found = statistics(read(write("f.jsonl", turn("a", 1, 0.0, 10, api_time=2.0), turn("a", 2, 8.0, 30, api_time=2.0)))[0])
    assert found["idle_share"] == 0.75 and found["replay_s"] == {"1": 6.0, "10": 0.6}


@no_folder
@pytest.mark.parametrize(
    ("file", "requests", "sessions", "gaps"),
    [
        ("acg_seedlike_52sess.jsonl", 4185, 52, (1.38, 4.93, 17.7, 42.7, 222)),
        ("acg_gapmatched_52sess.jsonl", 1986, 52, (1.39, 2.95, 7.53, 101.7, 366)),
        ("kct_52sess_le131k.jsonl", 5021, 52, None),
        ("conversation_trace.jsonl", 12031, 12031, None),
        ("synthetic_trace.jsonl", 3993, 3993, None),
        ("AzureLLMInferenceTrace_code.csv", 8819, 8819, None),
        ("replay_multi_session_large.csv", 303, 48, None),
        ("sanitized_round_trace.jsonl", 19, 2, None),
    ],
)
def test_real_files(file: str, requests: int, sessions: int, gaps: tuple[float, ...] | None) -> None:
    trace, reading = read(TRACES / file)
    found = statistics(trace)
    assert (found["requests"], found["sessions"], reading.rejected) == (requests, sessions, 0)
    if gaps:
        assert tuple(found["gap_s"].values()) == pytest.approx(gaps, rel=0.01)
        assert found["gaps_arrival"] == found["gaps"]


@no_folder
def test_acg_seedlike_prompts() -> None:
    found = statistics(read(TRACES / "acg_seedlike_52sess.jsonl")[0])
    assert found["shorter_than_history"] == 855 and found["prompt_shrinks"] == 0 and found["shared_unknown"] == 0


@no_folder
def test_tracelab_prefixes_are_the_history() -> None:
    trace, _ = read(TRACES / "replay_multi_session_large.csv")
    assert all(t.shared_tokens == b.input_tokens + b.output_tokens for s in trace.sessions for b, t in zip(s.turns, s.turns[1:], strict=False))
