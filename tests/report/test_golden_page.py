"""The published figures stand in the page: run directories of known figures, imported, decided and reported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest
from conftest import CONFIG
from reading import Node, cells, page

from apd_replay.report.page import html
from apd_replay.report.sections import build
from apd_replay.report.source import Source

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
pytestmark = pytest.mark.skipif(
    not (GOLDEN / "make_golden.py").is_file(), reason="the golden data generator (../shared/golden) is not on this machine"
)

Figures = Callable[..., list[float]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("golden-page")
    results = work / "results"
    for command in (
        [GOLDEN / "make_golden.py", GOLDEN / "published.json", work / "made"],
        [
            "-m",
            "apd_replay",
            "import",
            *[work / "made/runs" / run for run in ("E0/r1", "E0/r2", "E0/r3", "E6/r1")],
            "--trace",
            work / "made/trace.jsonl",
            "--results",
            results,
        ],
        ["-m", "apd_replay", "claims", "--results", results, "--config", CONFIG],
        ["-m", "apd_replay", "report", "--results", results, "--config", CONFIG],
    ):
        done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return results


@pytest.fixture(scope="module")
def tree(results: Path) -> Node:
    return page(results)


@pytest.fixture(scope="module")
def figures(tree: Node) -> Figures:
    """What the page says about a metric, by scope and replicate; `replicate="all"`: the figure over all of them."""
    evidence = {}
    for table in tree.all("table"):
        caption = table.all("caption")
        found = re.match(r"Evidence for (\S+):", caption[0].text) if caption else None
        if found:
            evidence[found[1]] = cells(table)

    def look(claim: str, metric: str, experiment: str = "E0", scope: str | None = None, replicate: int | str | None = None) -> list[float]:
        rows = [
            r
            for r in evidence[claim]
            if r[0] == metric and r[2] == experiment and scope in (None, r[1]) and (r[3] == replicate if replicate else r[3] != "all")
        ]
        return [float(str(r[4])) for r in rows]

    return look


def test_errors_and_latency_of_every_run(figures: Figures) -> None:
    assert figures("headline", "errors") == [372, 912, 396]
    assert figures("headline", "errors", "E6") == [0]
    assert figures("headline", "latency_mean") == pytest.approx([3.5, 3.0, 3.42])
    assert figures("headline", "latency_p50") == pytest.approx([1.11, 0.94, 1.22])
    assert figures("headline", "latency_p90") == pytest.approx([8.65, 7.68, 8.43])
    assert figures("headline", "ttft_p50") == pytest.approx([0.147, 0.071, 0.183])
    assert figures("headline", "ttft_mean", "E6") == pytest.approx([0.123])


def test_starved_sessions(figures: Figures) -> None:
    bins = [figures("s1", "direct_rate_bin", scope=b) for b in ("0-20", "20-40", "40-60", "60-80", "80-100")]
    assert bins == [[15, 18, 16], [7, 6, 7], [11, 7, 9], [5, 6, 4], [14, 15, 16]]
    assert figures("s1", "distinct_decode_workers_mean") == [1.0, 1.0, 1.0]
    assert figures("s1", "starved_in_all", replicate="all") == [13]
    assert figures("s1", "starved_peak_input_mean", replicate="all") == pytest.approx([62043])
    assert figures("s1", "lucky_peak_input_mean", replicate="all") == pytest.approx([31344])


def test_workers(figures: Figures) -> None:
    assert figures("s2", "trims", replicate=1) == [9, 43, 16, 37, 28, 30]
    assert figures("s2", "failed_rooms", replicate=1) == [0, 4, 153, 29, 90, 93]
    assert figures("s2", "peak_token_usage", replicate=1) == [0.99, 0.99, 0.97, 0.99, 1.0, 1.0]
    assert [figures("s5", "requests", scope=f"prefill-{p}", replicate=1) for p in (0, 1)] == [[2225], [2224]]
    assert [figures("s5", "failed_rooms", scope=f"prefill-{p}", replicate=1) for p in (0, 1)] == [[367], [2]]
    assert [figures("s5", "rejections", scope=f"prefill-{p}", replicate=1) for p in (0, 1)] == [[361], [0]]


def test_gaps(figures: Figures) -> None:
    for metric, seconds in (("gap_p10", 1.6), ("gap_p50", 2.5), ("gap_p90", 7.8), ("gap_p99", 25.1), ("gap_max", 261.0)):
        assert figures("s7", metric, scope="trace", replicate=1) == pytest.approx([seconds])


def test_verdicts_and_their_engine(tree: Node) -> None:
    rows = {r.attributes["data-claim"]: r for r in tree.all("tr") if "data-claim" in r.attributes}
    words = {claim: row.attributes["data-verdict"] for claim, row in rows.items()}
    assert words == {
        "s0": "holds",
        "s1": "holds",
        "s2": "undecided",
        "s3": "undecided",
        "s4": "undecided",
        "s5": "undecided",
        "s6": "withdrawn",
        "s7": "partly",
        "s8": "holds",
        "s9": "undecided",
        "s10": "undecided",
        "headline": "provisional",
    }
    assert "leaning to holds" in rows["s2"].text and "leaning to refuted" in rows["s3"].text
    assert {row.attributes["data-engine"] for row in rows.values()} == {"imported"}


def test_what_readers_see_is_rounded_and_separated(tree: Node) -> None:
    shown = {c.text for c in tree.all("td")}
    assert {"62,043", "31,344", "4,449", "372", "912", "396", "8.65", "0.147"} <= shown


def test_links_show_the_latch(tree: Node) -> None:
    """Link prefill-0>decode-2: two real failures, 151 rejections, no success after the latch."""
    table = next(t for t in tree.all("table") if t.all("caption") and t.all("caption")[0].text.startswith("Each link"))
    link = next(row for row in cells(table) if row[0] == "prefill-0>decode-2")
    heads = [h.text for h in table.all("th")]
    counts = dict(zip(heads, link, strict=True))
    assert (counts["real failures"], counts["rejections"], counts["successes after the latch"], counts["recovered, s"]) == (2, 151, 0, None)
    assert float(str(counts["first real failure, s"])) < float(str(counts["last rejection, s"]))


def test_every_link_into_the_store_leads_to_a_file_and_its_line(results: Path, tree: Node) -> None:
    links = {(unquote(a.attributes["href"]), a.text) for a in tree.all("a") if a.attributes["href"].startswith("../")}
    assert len(links) > 20
    for href, text in links:
        file = results / "report" / href
        assert file.is_file(), href
        if ".log:" in text:
            line = file.read_text().splitlines()[int(text.rsplit(":", 1)[1]) - 1]
            assert re.search("failed|Session trim", line), line


def test_same_results_same_bytes(results: Path) -> None:
    """Also where DuckDB would sum floats in several threads, in any order."""
    with Source(results, CONFIG) as source:
        first = html(build(source))
    for _ in range(3):
        with Source(results, CONFIG) as source:
            assert html(build(source)) == first


def test_a_runs_manifest_stands_for_its_directory(results: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "apd_replay", "trace-events", str(results / "runs/E0/r1.json"), "--out", str(tmp_path / "t.json")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "t.json").read_text())
    trims = [e for e in content["traceEvents"] if e["name"] == "trim"]
    assert len(trims) == 9 + 43 + 16 + 37 + 28 + 30
    assert (content["otherData"]["experiment"], content["otherData"]["replicate"]) == ("E0", 1)
