"""Run directories of known figures, made by ../shared/golden/make_golden.py, must give exactly these figures and verdicts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
CONFIG = Path(__file__).parents[2] / "config"
TRANSFER_ERRORS = {1: 369, 2: 909, 3: 390}  # send failures and rejections of published.json's links

pytestmark = pytest.mark.skipif(not (GOLDEN / "make_golden.py").is_file(), reason="the golden data generator (../shared/golden) is not on this machine")

Ask = Callable[..., list[tuple[Any, ...]]]


def other_figures(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures that nobody published: other sizes, times, bins, links and logs."""
    trace, runs = figures["trace"], figures["runs"]
    trace.update(name="other-40", sessions=40, requests=3600, starved_in_all=8, lucky_in_all=7, starved_peak_mean=70011, lucky_peak_mean=29999,
                 gaps={"p10": 1.1, "p50": 3.25, "p90": 9.5, "p99": 31.0, "max": 187.5})  # fmt: skip
    for run, bins in zip(runs[:3], ([12, 5, 9, 4, 10], [11, 6, 6, 6, 11], [13, 5, 8, 4, 10]), strict=True):
        run["direct_bins"] = bins
    runs[0].update(errors=231, latency={"mean": 2.9, "p50": 1.05, "p90": 6.5}, ttft={"mean": 1.5, "p50": 0.21, "p90": 4.1}, trims=[5, 0, 71, 8, 13, 21])
    runs[0]["links"] = [{"p": 1, "d": 2, "send_failures": 2, "rejections": 101}, {"p": 0, "d": 4, "send_failures": 1, "rejections": 120}]
    runs[0]["peak_usage"] = [0.91, 0.88, 0.99, 0.96, 0.97, 0.93]
    runs[3].update(latency={"mean": 1.6, "p50": 0.7, "p90": 3.9}, ttft={"mean": 0.2, "p50": 0.11, "p90": 0.4})
    return figures


@pytest.fixture(scope="module", params=["published-1", "published-2", "published-7", "other-3"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """The figures, and the results folder that `apd import` and `apd claims` made of run directories with these figures."""
    kind, seed = request.param.split("-")
    work = tmp_path_factory.mktemp(request.param)
    figures = json.loads((GOLDEN / "published.json").read_text())
    figures = other_figures(figures) if kind == "other" else figures
    (work / "figures.json").write_text(json.dumps(figures))
    call(sys.executable, GOLDEN / "make_golden.py", work / "figures.json", work / "made", "--seed", seed)
    runs = sorted((work / "made" / "runs").glob("*/*"))
    call(sys.executable, "-m", "apd_replay", "import", *runs, "--trace", work / "made" / "trace.jsonl", "--results", work / "results")
    call(sys.executable, "-m", "apd_replay", "claims", "--results", work / "results", "--config", CONFIG)
    return figures, work / "results"


def call(*command: object) -> None:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def figures(case: tuple[dict[str, Any], Path]) -> dict[str, Any]:
    return case[0]


@pytest.fixture
def ask(case: tuple[dict[str, Any], Path]) -> Ask:
    def asking(query: str, *values: object) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(case[1] / "apd.duckdb"), read_only=True) as connection:
            return connection.execute(query, list(values)).fetchall()

    return asking


def value(ask: Ask, claim: str, metric: str, experiment: str, replicate: int | None, scope: str | None = None) -> float | None:
    rows = ask("SELECT value FROM evidence WHERE claim = ? AND metric = ? AND experiment = ? AND replicate IS NOT DISTINCT FROM ? AND scope IS NOT DISTINCT FROM ?",
               claim, metric, experiment, replicate, scope)  # fmt: skip
    assert len(rows) <= 1, rows
    return rows[0][0] if rows else None


def test_errors_latencies_and_ttft_are_exact(ask: Ask, figures: dict[str, Any]) -> None:
    for run in figures["runs"]:
        key = (run["experiment"], run["replicate"])
        assert value(ask, "headline", "errors", *key) == run["errors"]
        for metric in ("latency", "ttft"):
            for statistic in ("mean", "p50", "p90"):
                assert value(ask, "headline", f"{metric}_{statistic}", *key) == pytest.approx(run[metric][statistic], abs=1e-9), (key, metric, statistic)


def test_direct_rates_and_starved_sessions_are_exact(ask: Ask, figures: dict[str, Any]) -> None:
    trace = figures["trace"]
    for run in figures["runs"][:3]:
        bins = [value(ask, "s1", "direct_rate_bin", "E0", run["replicate"], scope) for scope in ("0-20", "20-40", "40-60", "60-80", "80-100")]
        assert bins == run["direct_bins"]
        assert value(ask, "s1", "distinct_decode_workers_mean", "E0", run["replicate"]) == 1.0
    assert value(ask, "s1", "starved_in_all", "E0", None) == trace["starved_in_all"]
    assert value(ask, "s1", "lucky_in_all", "E0", None) == trace["lucky_in_all"]
    assert value(ask, "s1", "starved_peak_input_mean", "E0", None) == trace["starved_peak_mean"]
    assert value(ask, "s1", "lucky_peak_input_mean", "E0", None) == trace["lucky_peak_mean"]
    assert value(ask, "s1", "peak_input_ratio", "E0", None) == trace["starved_peak_mean"] / trace["lucky_peak_mean"]


def test_trims_failed_rooms_and_peaks_per_d_are_exact(ask: Ask, figures: dict[str, Any]) -> None:
    for run in figures["runs"][:3]:
        for d in range(6):
            failed = sum(link["send_failures"] + link["rejections"] for link in run["links"] if link["d"] == d)
            assert value(ask, "s2", "failed_rooms", "E0", run["replicate"], f"decode-{d}") == failed
            trims, peak = (run["trims"][d], run["peak_usage"][d]) if run.get("logs") else (None, None)  # no log: unknown, not 0
            assert value(ask, "s2", "trims", "E0", run["replicate"], f"decode-{d}") == trims
            assert value(ask, "s2", "peak_token_usage", "E0", run["replicate"], f"decode-{d}") == peak


def test_requests_failed_rooms_and_rejections_per_p_are_exact(ask: Ask, figures: dict[str, Any]) -> None:
    requests = figures["trace"]["requests"]
    for run in figures["runs"][:3]:
        for p in range(2):
            links = [link for link in run["links"] if link["p"] == p]
            scope = (run["replicate"], f"prefill-{p}")
            assert value(ask, "s5", "requests", "E0", *scope) == (requests + 1 - p) // 2
            assert value(ask, "s5", "rejections", "E0", *scope) == sum(link["rejections"] for link in links)
            assert value(ask, "s5", "failed_rooms", "E0", *scope) == sum(link["rejections"] + link["send_failures"] for link in links)
            for link in links:
                assert value(ask, "s8", "real_failures", "E0", run["replicate"], f"prefill-{p}>decode-{link['d']}") == link["send_failures"]


def test_gaps_of_trace_and_replay_are_exact(ask: Ask, figures: dict[str, Any]) -> None:
    for run in figures["runs"]:
        for name, gap in figures["trace"]["gaps"].items():
            key = (run["experiment"], run["replicate"])
            assert value(ask, "s7", f"gap_{name}", *key, "trace") == pytest.approx(gap, abs=1e-6)
            assert value(ask, "s7", f"gap_{name}", *key, "replay") == pytest.approx(gap / run["time_scale"], abs=1e-6)
    n = figures["trace"]["requests"] - figures["trace"]["sessions"]
    assert ask("SELECT DISTINCT n FROM evidence WHERE metric = 'gap_p50' AND replicate IS NOT NULL") == [(n,)]


def test_the_published_figures_in_their_own_numbers(ask: Ask, figures: dict[str, Any]) -> None:
    if figures["trace"]["name"] != "golden-swebench-52":
        pytest.skip("figures of the seed report only")
    assert ask("SELECT errors FROM runs ORDER BY experiment, replicate") == [(372,), (912,), (396,), (0,)]
    assert [value(ask, "s3", "failed_rooms", "E0", r) for r in (1, 2, 3)] == list(TRANSFER_ERRORS.values())
    assert [value(ask, "s2", "failed_rooms", "E0", 1, f"decode-{d}") for d in range(6)] == [0, 4, 153, 29, 90, 93]
    assert [value(ask, "s5", m, "E0", 1, f"prefill-{p}") for m in ("requests", "failed_rooms", "rejections") for p in (0, 1)] == [2225, 2224, 367, 2, 361, 0]
    assert 8 <= (value(ask, "s3", "waited_30s", "E0", 1) or 0) <= 12
    assert value(ask, "s0", "spread", "E0", None, "errors") == 912 / 372


def test_verdicts(ask: Ask, figures: dict[str, Any]) -> None:
    if figures["trace"]["name"] != "golden-swebench-52":
        pytest.skip("verdicts of the published figures only")
    found = {claim: (verdict, leaning) for claim, verdict, leaning in ask("SELECT claim, verdict, leaning FROM verdicts")}
    unknown_s9 = found.pop("s9")  # what one run's shards happen to show decides its leaning
    assert unknown_s9[0] == "undecided"
    assert found == {
        "s0": ("holds", None), "s1": ("holds", None), "s2": ("undecided", "holds"), "s3": ("undecided", "refuted"), "s4": ("undecided", None),
        "s5": ("undecided", "holds"), "s6": ("withdrawn", None), "s7": ("partly", None), "s8": ("holds", None), "s10": ("undecided", None), "headline": ("provisional", "holds"),
    }  # fmt: skip
    [(n, engine, trace)] = ask("SELECT n, engine, trace FROM verdicts WHERE claim = 'headline'")
    assert (n, engine, trace) == (1, "imported", "golden-swebench-52")
    [(notes,)] = ask("SELECT notes FROM verdicts WHERE claim = 's5'")
    assert "replicates lie on both sides of the threshold" in notes
    [(confounders,)] = ask("SELECT confounders FROM verdicts WHERE claim = 'headline'")
    assert "memory fraction is not stated" in confounders


def test_every_name_of_the_contract_is_there(ask: Ask) -> None:
    found = {claim: set(metrics) for claim, metrics in ask("SELECT claim, list(DISTINCT metric) FROM evidence GROUP BY claim")}
    statistics = ("mean", "p50", "p90", "p99")
    assert found["s0"] >= {"errors", "latency_p50", "latency_p90", "ttft_p50", "spread"}
    assert found["s1"] >= {"distinct_decode_workers_mean", "direct_rate_bin", "starved_in_all", "lucky_in_all", "starved_peak_input_mean",
                           "lucky_peak_input_mean", "peak_input_ratio", "latency_mean", "ttft_mean"}  # fmt: skip
    assert found["s2"] >= {"trims", "failed_rooms", "peak_token_usage", "failed_per_trim"}
    assert found["s3"] >= {"failed_rooms", "first_error_fraction", "wait_p50", "wait_max", "latency_p99"}
    assert found["s4"] >= {"admission_latency_p50", "admission_latency_p99"}
    assert found["s5"] >= {"requests", "failed_rooms", "rejections"}
    assert found["s7"] >= {f"gap_{q}" for q in ("p10", "p50", "p90", "p99", "max")}
    assert found["s8"] >= {"real_failures", "rejections", "rejection_share"}
    assert found["headline"] >= {"errors", "tpot_p50", "goodput", "throughput", "session_completion_p50", *(f"{m}_{s}" for m in ("latency", "ttft", "response") for s in statistics)}
