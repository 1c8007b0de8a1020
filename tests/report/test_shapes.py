"""Results of every shape give a whole page: little data, one engine, many sessions, broken figures."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import CONFIG, add_run, evidence_row, verdict_row, write_claims
from reading import Node, page

from apd_replay.errors import InputError
from apd_replay.report.command import report
from apd_replay.report.source import Source
from apd_replay.warehouse import database

Make = Callable[..., Path]


def made(results: Path) -> Node:
    outcome = CliRunner().invoke(report, ["--results", str(results), "--config", str(CONFIG)], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return page(results)


def figures(tree: Node) -> set[str]:
    return {f.attributes["id"] for f in tree.all("figure")}


def sections(tree: Node) -> dict[str, Node]:
    return {s.attributes["id"]: s for s in tree.all("section")}


def test_only_imported_runs_without_logs_leave_out_what_takes_logs(make_results: Make) -> None:
    tree = made(make_results([("imported", "golden", "")], logs=False))
    names = figures(tree)
    assert any(n.startswith("session-map-E0") for n in names)
    pools = next(f for f in tree.all("figure") if f.attributes["id"].startswith("pools-"))
    assert "no usage lines in this run's logs" in pools.text
    assert {e.attributes["data-engine"] for e in tree.all("figure")} == {"imported"}


def test_one_session_and_no_errors(make_results: Make) -> None:
    tree = made(make_results([("sim", "one", "")], sessions=["only"], failures=False, replicates=1))
    names = figures(tree)
    assert not any(n.startswith("waits-") for n in names), "nothing failed, so nothing waited"
    assert any(n.startswith("session-map-") for n in names)
    assert "0 of them failed" in tree.text


def test_a_claim_without_runs_says_so(tmp_path: Path) -> None:
    results = tmp_path / "results"
    add_run(results, "E6", 1, "sim", "t", sessions=["a"], kvc=False)
    write_claims(
        results,
        [],
        [
            verdict_row(
                "sim",
                "t",
                "s1",
                "undecided",
                n=None,
                effect=None,
                experiments=[],
                runs=[],
                confounders=[],
                fix=None,
                fix_effect=None,
                notes=None,
            )
        ],
    )
    database.build(results)
    by_id = sections(made(results))
    assert "No runs in this results folder speak to this claim." in by_id["s4"].text
    assert "undecided" in by_id["s1"].text and "nothing that is known" in by_id["s1"].text


def test_no_runs_at_all(tmp_path: Path) -> None:
    results = tmp_path / "results"
    write_claims(results, [], [])
    database.build(results)
    tree = made(results)
    assert "There are no runs in this results folder." in tree.text
    assert not tree.all("figure")


def test_infinite_and_missing_effects(tmp_path: Path) -> None:
    results = tmp_path / "results"
    add_run(results, "E0", 1, "sim", "t", sessions=["a", "b"])
    inf = float("inf")
    evidence = [
        evidence_row("sim", "t", "headline", "response_p99", None, None, inf, unit="KVC / DP", n=1),
        evidence_row("sim", "t", "headline", "response_p99", "E0", 1, inf, unit="s"),
        evidence_row("sim", "t", "s0", "latency_p50", "E0", 1, 0.0),
        evidence_row("sim", "t", "s8", "rejection_share", "E0", 1, None),
    ]
    write_claims(results, evidence, [verdict_row("sim", "t", "headline", "undecided", effect=inf, effect_low=None, effect_high=None)])
    database.build(results)
    tree = made(results)
    row = next(r for r in tree.all("tr") if r.attributes.get("data-claim") == "headline")
    assert "∞ ratio" in row.text


def test_a_claim_of_ones_own_gets_a_section_with_its_evidence(tmp_path: Path) -> None:
    results = tmp_path / "results"
    add_run(results, "E0", 1, "sim", "t", sessions=["a"])
    write_claims(results, [evidence_row("sim", "t", "x<1>", "figure", "E0", 1, 4.0)], [verdict_row("sim", "t", "x<1>", "holds")])
    database.build(results)
    section = sections(made(results))["x-1"]
    assert "x<1>" in section.all("h2")[0].text
    assert any(c.text.startswith("Evidence for x<1>") for c in section.all("caption"))


def test_several_traces_of_one_engine_are_kept_apart(make_results: Make) -> None:
    tree = made(make_results([("sim", "t one", ""), ("sim", "t-one", "@2")]))
    names = [f.attributes["id"] for f in tree.all("figure")]
    assert len(names) == len(set(names)), "two traces whose names differ in punctuation only must not share a file"
    s1 = [f for f in tree.all("figure") if f.attributes["id"].startswith("s1-bins")]
    assert len(s1) == 2
    assert ["trace t one" in f.text for f in s1] == [True, False]


def test_many_sessions_are_shown_evenly_and_counted(make_results: Make) -> None:
    results = make_results([("sim", "many", "")], sessions=[f"s{k:04d}" for k in range(450)], replicates=1)
    tree = made(results)
    figure = next(f for f in tree.all("figure") if f.attributes["id"].startswith("session-map-E0"))
    assert "60 of 450 sessions" in figure.text
    assert "The 450 sessions; the first 400 are shown, the query below gives all" in tree.text


def test_the_query_under_a_figure_gives_its_rows(results: Path) -> None:
    """What the page prints can be given to `apd sql` as it stands."""
    tree = page(results)
    texts = [p.text for p in tree.all("pre") if p.text.startswith("--")]
    assert len(texts) >= 8
    with Source(results, CONFIG) as source:
        assert all(source.sql(text) for text in texts)


def test_without_a_database_one_line_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"apd\.duckdb: no such file; apd warehouse"):
        Source(tmp_path, CONFIG)


def test_without_claims_one_line_says_what_to_do(make_results: Make) -> None:
    results = make_results()
    shutil.rmtree(results / "claims")
    with pytest.raises(InputError, match=r"evidence\.parquet: no such file; apd claims"):
        Source(results, CONFIG)


def test_a_failed_write_leaves_the_old_page(make_results: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    results = make_results()
    made(results)
    before = (results / "report/report.html").read_bytes()
    monkeypatch.setattr("apd_replay.report.page.html", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        CliRunner().invoke(report, ["--results", str(results), "--config", str(CONFIG)], catch_exceptions=False)
    assert (results / "report/report.html").read_bytes() == before


def test_the_simulation_error_is_shown_only_where_it_can_be_measured(tmp_path: Path, make_results: Make) -> None:
    assert "simulation-error" not in sections(made(make_results()))
    results = tmp_path / "both"
    for engine, experiment in (("sim", "E0"), ("sglang", "E0@sglang")):
        for n in (1, 2, 3):
            add_run(results, experiment, n, engine, "t", sessions=["a", "b", "c"])
    write_claims(results, [], [])
    database.build(results)
    table = sections(made(results))["simulation-error"].all("table")[0]
    assert table.attributes["data-engine"] == "sim and sglang"
    rows = {r.all("td")[1].text: [c.attributes.get("data-v") for c in r.all("td")] for r in table.all("tr")[1:]}
    with Source(results, CONFIG) as source:
        means = source.sql(
            "SELECT avg(m) AS m FROM (SELECT experiment, avg(latency_s) AS m FROM requests GROUP BY experiment, replicate) GROUP BY experiment ORDER BY experiment"
        )
    assert [float(str(rows["latency_mean"][k])) for k in (4, 2)] == pytest.approx([r["m"] for r in means])
