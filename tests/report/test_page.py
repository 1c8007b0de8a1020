"""The page says what the tables say, names its engines, and lets no foreign text act."""

from __future__ import annotations

import math
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import CONFIG, HOSTILE, WORDS
from reading import Node, cells, page

from apd_replay.report import page as pages
from apd_replay.report.evidence import COLUMNS
from apd_replay.report.model import Figure
from apd_replay.report.numbers import plain
from apd_replay.report.sections import build
from apd_replay.report.source import Source


@pytest.fixture(scope="module")
def tree(results: Path) -> Node:
    return page(results)


def rows_of(results: Path, name: str) -> list[dict[str, object]]:
    return list(pq.read_table(results / f"claims/{name}.parquet").to_pylist())


def test_every_evidence_row_is_in_the_page_as_it_is_in_the_table(results: Path, tree: Node) -> None:
    shown: list[tuple[object, ...]] = []
    for table in tree.all("table"):
        caption = table.all("caption")
        if caption and caption[0].text.startswith("Evidence for "):
            claim = re.match(r"Evidence for (\S+):", caption[0].text)
            assert claim
            shown += [(claim[1], table.attributes["data-engine"], *row) for row in cells(table)]
    expected = []
    for r in (r for r in rows_of(results, "evidence") if r["claim"] != "errata"):
        values = ["all" if c == "replicate" and r[c] is None else r[c] for c in COLUMNS]
        expected.append((r["claim"], r["engine"], *values))
    assert sorted(map(repr, map(floats, shown))) == sorted(map(repr, map(floats, expected)))


def floats(row: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(float(v) if isinstance(v, int | float) else v for v in row)


def test_infinite_figures_are_shown_and_kept(tree: Node) -> None:
    infinite = [c for c in tree.all("td") if c.attributes.get("data-v") == "inf"]
    assert infinite and all(c.text == "∞" for c in infinite)
    assert math.isinf(float(infinite[0].attributes["data-v"]))


def test_figures_show_the_rows_that_they_are_drawn_from(results: Path, tree: Node) -> None:
    """The folded table under each claim's figure holds evidence rows, unchanged."""
    known = {
        tuple(map(repr, floats(tuple("all" if c == "replicate" and r[c] is None else r[c] for c in COLUMNS))))
        for r in rows_of(results, "evidence")
    }
    checked = 0
    for table in tree.all("table"):
        caption = table.all("caption")
        if caption and caption[0].text.startswith("Numbers"):
            for row in cells(table):
                assert tuple(map(repr, floats(tuple(row)))) in known
                checked += 1
    assert checked > 200


def test_every_figure_names_its_engine_in_the_picture_and_beside_it(tree: Node) -> None:
    figures = tree.all("figure")
    assert len(figures) > 20
    for figure in figures:
        engine = figure.attributes["data-engine"]
        assert engine in ("sim", "imported")
        assert f"engine {engine} ·" in figure.all("svg")[0].text
        assert [b.text for b in figure.all("figcaption")[0].all("span")] == [engine]


def test_every_table_of_figures_names_its_engine(tree: Node) -> None:
    for table in tree.all("table"):
        if any("data-v" in c.attributes for c in table.all("td")):
            assert "data-engine" in table.attributes or any(h.text.lower().startswith("engine") for h in table.all("th"))


def test_every_figure_has_its_numbers_one_click_away(tree: Node) -> None:
    section_children = [c for s in tree.all("section") for c in s.children]
    for here, behind in zip(section_children, [*section_children[1:], Node("", {})], strict=True):
        if here.tag == "figure":
            assert behind.tag == "details" and cells(behind.all("table")[0])


def test_verdict_table_comes_first_and_says_what_the_tables_say(results: Path, tree: Node) -> None:
    first = tree.all("section")[0]
    assert first.attributes["id"] == "verdicts"
    shown = [
        (r.attributes["data-claim"], r.attributes["data-engine"], r.attributes["data-trace"], r.attributes["data-verdict"])
        for r in first.all("tr")
        if "data-claim" in r.attributes
    ]
    assert sorted(shown) == sorted((r["claim"], r["engine"], r["trace"], r["verdict"]) for r in rows_of(results, "verdicts"))
    for row in first.all("tr"):
        if "data-claim" in row.attributes:
            assert row.attributes["data-verdict"] in row.text and row.attributes["data-engine"] in row.text


def test_markdown_has_the_same_verdicts(results: Path, tree: Node) -> None:
    text = (results / "report/report.md").read_text(encoding="utf-8")
    table = text.split("## Verdicts")[1].split("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", r)[1:-1] for r in table.splitlines() if r.startswith("| **")]
    shown = sorted((r[0].split("**")[1], r[1].strip(), r[3].strip()) for r in rows)
    page_rows = [r for r in tree.all("section")[0].all("tr") if "data-claim" in r.attributes]
    assert shown == sorted((r.attributes["data-claim"], r.attributes["data-verdict"], r.attributes["data-engine"]) for r in page_rows)


def test_a_section_for_each_claim_with_statement_conclusion_effect_uncertainty(tree: Node) -> None:
    sections = {s.attributes["id"]: s for s in tree.all("section")}
    for claim in WORDS:
        terms = [t.text for t in sections[claim].all("dt")]
        assert {"Conclusion", "Effect", "Uncertainty", "What else could explain it", "Fix, and what it changed"} <= set(terms)
        if claim != "headline":
            assert f"what {claim} says" in sections[claim].all("h2")[0].text


def test_errata_stand_beside_their_claims_with_what_was_measured(tree: Node) -> None:
    sections = {s.attributes["id"]: s for s in tree.all("section")}

    def errata(claim: str) -> list[list[str | float | None]]:
        return [
            row
            for t in sections[claim].all("table")
            if t.all("caption") and t.all("caption")[0].text == "Errata of the seed report"
            for row in cells(t)
        ]

    latency = [row for row in errata("headline") if "110 %" in str(row[0])]
    assert [(row[3], row[6]) for row in latency] == [("imported", 1.32), ("sim", 1.32)]
    assert "131 %" in str(latency[0][1])
    assert "361" in str(errata("s3")[0][1])
    assert errata("s9") == []


def test_hostile_text_does_not_act(tree: Node) -> None:
    assert len(tree.all("script")) == 1
    for tag in ("img", "iframe", "i", "form"):
        assert not tree.all(tag)
    assert not [n for n in tree.all() for k in n.attributes if k.startswith("on") or k == "style"]


def test_hostile_session_ids_are_shown_as_text(tree: Node) -> None:
    text = tree.text
    for session in HOSTILE:
        assert plain(session, 400) in text
    assert "49" not in {c.text for c in tree.all("td")}, "a template evaluated a session id"


def test_nothing_is_loaded_from_outside(results: Path, tree: Node) -> None:
    for node in tree.all():
        assert node.tag not in ("link", "object", "embed", "base"), node.tag
        for key in ("src", "href", "action", "xlink:href", "srcset", "data"):
            target = node.attributes.get(key, "")
            assert not re.match(r"(?i)\s*([a-z][a-z0-9+.-]*:|//)", target), target
    policy = next(m.attributes["content"] for m in tree.all("meta") if m.attributes.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy and "unsafe" not in policy
    style = tree.all("style")[0].text
    assert "url(" not in style and "@import" not in style


def test_markdown_carries_no_markup_from_outside(results: Path) -> None:
    text = (results / "report/report.md").read_text(encoding="utf-8")
    assert "<" not in text
    assert "](http" not in text
    assert "\x1b" not in text and "\u202e" not in text


def test_svg_files_are_well_formed_and_the_same_as_in_the_page(results: Path, tree: Node) -> None:
    names = sorted(f.attributes["id"] for f in tree.all("figure"))
    files = sorted((results / "report/figures").glob("*.svg"))
    assert [f.stem for f in files] == names == sorted(set(names))
    html = (results / "report/report.html").read_text(encoding="utf-8")
    for file in files:
        root = ElementTree.parse(file).getroot()
        assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
        assert file.read_text(encoding="utf-8").split("\n", 1)[1].strip() in html


def test_links_to_log_lines_lead_into_the_store(results: Path, tree: Node) -> None:
    targets = {a.attributes["href"]: a.text for a in tree.all("a") if not a.attributes["href"].startswith("#")}
    assert any(t.endswith("logs/prefill-1.log") and text == "logs/prefill-1.log:7" for t, text in targets.items())
    assert all(t.startswith("../store/") for t in targets)


def test_a_server_that_ends_with_the_run_did_not_crash_in_it(results: Path) -> None:
    with Source(results, CONFIG) as source:
        crashed = [r for r in source.query("log_lines", experiment="E0", replicate=1) if r["kind"] == "crash"]
    assert [(r["worker"], r["lines"], r["last_line"]) for r in crashed] == [("prefill-1", 1, 8)]


def test_same_input_same_bytes(results: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        with Source(results, CONFIG) as source:
            pages.write(build(source), tmp_path / name)
    first, second = (
        {f.relative_to(tmp_path / n): f.read_bytes() for f in sorted((tmp_path / n).rglob("*")) if f.is_file()} for n in ("a", "b")
    )
    assert first == second
    assert first[Path("report.html")] == (results / "report/report.html").read_bytes()


def test_moving_the_results_folder_changes_nothing(results: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(results, moved)
    with Source(moved, CONFIG) as source:
        assert pages.html(build(source)) == (results / "report/report.html").read_text(encoding="utf-8")


def test_no_figure_mixes_engines(results: Path) -> None:
    with Source(results, CONFIG) as source:
        report = build(source)
    engines = {"E0": "sim", "E6": "sim", "E0@g": "imported", "E6@g": "imported"}
    for section in report.sections:
        for figure in (b for b in section.blocks if isinstance(b, Figure)):
            experiments = {row[2] for row in figure.table.rows if figure.table.columns == COLUMNS and row[2] is not None}
            assert {engines[e] for e in experiments} <= {figure.engine}


def test_an_old_report_is_replaced_whole(results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "report"
    (folder / "figures").mkdir(parents=True)
    (folder / "figures/of-last-week.svg").write_text("old")
    with Source(results, CONFIG) as source:
        pages.write(build(source), folder)
    assert not (folder / "figures/of-last-week.svg").exists()
    assert sorted(p.name for p in folder.iterdir()) == ["figures", "report.html", "report.md"]
