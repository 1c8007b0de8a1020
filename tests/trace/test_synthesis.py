"""The built-in trace: what the claims ask of it, exactly; and its seed fixes every byte."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml

from apd_replay import configuration
from apd_replay.errors import ConfigError, InputError
from apd_replay.trace.load import load
from apd_replay.trace.model import Trace
from apd_replay.trace.statistics import quantile, statistics
from apd_replay.trace.synthesis import synthesize

ROOT = Path(__file__).parent.parent.parent
CONFIG = ROOT / "config"
DIGEST = "7f8dabd87d7136a7f5de2d5489804578505c14c529c5e2a1fe5cf2e38c7cf157"


@pytest.fixture(scope="module")
def trace() -> Trace:
    return load("swebench-52", config_dir=CONFIG)


@pytest.fixture
def parameters() -> dict[str, Any]:
    return copy.deepcopy(configuration.syntheses(CONFIG)["swebench-52"])


def test_counts_and_gaps_are_exact(trace: Trace) -> None:
    found = statistics(trace)
    assert (found["requests"], found["sessions"], found["gaps"], found["gaps_arrival"]) == (4449, 52, 4397, 0)
    assert found["gap_s"] == {"p10": 1.6, "p50": 2.5, "p90": 7.8, "p99": 25.1, "max": 261.0}


def test_peaks(trace: Trace) -> None:
    peaks = [s.peak_input for s in trace.sessions]
    assert min(peaks) >= 20_000 and max(peaks) <= 110_000 and median(peaks) == pytest.approx(45_000, rel=0.01)
    assert all(s.peak_input == s.turns[-1].input_tokens for s in trace.sessions)


def test_answers(trace: Trace, parameters: dict[str, Any]) -> None:
    ascending = sorted(t.output_tokens for s in trace.sessions for t in s.turns)
    for label, value in parameters["output_tokens"].items():
        assert quantile(ascending, float(label[1:]) / 100) == pytest.approx(value), label


def test_prompts_grow_by_the_answer_and_more(trace: Trace) -> None:
    for session in trace.sessions:
        assert len(session.turns) >= 2 and session.turns[0].arrival_s == 0.0
        for before, turn in pairwise(session.turns):
            history = before.input_tokens + before.output_tokens
            assert turn.input_tokens > history and turn.shared_tokens == history and turn.gap_kind == "think"


def test_blocks_are_whole_append_only_and_the_sessions_own(trace: Trace) -> None:
    owner: dict[int, str] = {}
    for session in trace.sessions:
        held: tuple[int, ...] = ()
        for turn in session.turns:
            assert turn.hash_ids is not None and len(turn.hash_ids) == turn.input_tokens // 512 and turn.hash_ids[: len(held)] == held
            held = turn.hash_ids
        assert all(owner.setdefault(i, session.id) == session.id for i in held)


def test_the_short_trace_is_about_a_thousand_requests(trace: Trace) -> None:
    assert 900 <= sum(len(s.turns) for s in trace.sessions[:12]) <= 1100


def test_the_seed_fixes_every_byte() -> None:
    code = "from apd_replay.trace.load import load; print(load('swebench-52').digest)"
    for seed in ("0", "1", "4711"):
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == DIGEST


def test_another_seed_is_another_trace_of_the_same_kind(parameters: dict[str, Any], trace: Trace) -> None:
    other = synthesize("swebench-52", parameters | {"seed": 1})
    assert other.digest != trace.digest and statistics(other)["gap_s"] == statistics(trace)["gap_s"]
    assert sorted(s.peak_input for s in other.sessions) == sorted(s.peak_input for s in trace.sessions)


@pytest.mark.parametrize("seed", range(0, 200, 10))
def test_every_seed_makes_a_trace(parameters: dict[str, Any], seed: int) -> None:
    small = synthesize("s", parameters | {"seed": seed, "sessions": 26, "requests": 2224})
    assert small.requests == 2224 and statistics(small)["shorter_than_history"] == 0


def test_a_trace_of_ones_own(tmp_path: Path, parameters: dict[str, Any]) -> None:
    shutil.copytree(CONFIG, tmp_path / "config")
    (tmp_path / "config" / "traces.yaml").write_text(yaml.safe_dump({"mine": parameters | {"sessions": 5, "requests": 100}}))
    assert (load("mine", config_dir=tmp_path / "config").requests) == 100
    with pytest.raises(InputError, match=r"no such trace; .*: mine"):
        load("yours", config_dir=tmp_path / "config")


@pytest.mark.parametrize(
    ("change", "key", "said"),
    [
        ({"sessions": 0}, "t.sessions", "minimum"),
        ({"session": 4}, "t.session", "unknown key"),
        ({"requests": 60}, "t.requests", "at least two turns"),
        ({"gap_s": {"p10": 1, "p100": 2}}, "t.gap_s", "p0 and p100"),
        ({"gap_s": {"p0": 3, "p100": 2}}, "t.gap_s", "smaller"),
        ({"gap_s": {"p0": 3, "median": 2}}, "t.gap_s", "named p0 to p100"),
        ({"peak_tokens": {"median": 45_000, "sigma": 0.4, "least": 10_000, "most": 12_000}}, "t.peak_tokens", "leaves no room"),
        ({"output_tokens": {"p0": 5_000, "p100": 6_000}}, "t.output_tokens", "no session has room"),
    ],
)
def test_parameters_that_cannot_be(tmp_path: Path, parameters: dict[str, Any], change: dict[str, Any], key: str, said: str) -> None:
    shutil.copytree(CONFIG / "schema", tmp_path / "schema")
    (tmp_path / "traces.yaml").write_text(yaml.safe_dump({"t": parameters | change}))
    with pytest.raises(ConfigError, match=said) as error:
        load("t", config_dir=tmp_path)
    assert error.value.key == key and "traces.yaml" in error.value.file
