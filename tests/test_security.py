"""Text that somebody else wrote goes through every door: trace, replay, logs, tables, SQL, claims, report, import, and what is printed.

It may be shown, escaped; it must never run, name a file outside, drive a terminal, or end a cell of a table.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/sglang"))

from sockets import listening  # noqa: E402

HOSTILE = {
    "html": "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "svg": "]]></svg><svg onload=alert(3)>",
    "template": "{{ 7 * 7 }}{% raw %}",
    "sql": "'; DROP TABLE runs; --",
    "terminal": "\x1b]0;owned\x07\x1b[31m\x9b2J\u202eright to left\u2028",
    "path": "../../../../tmp/apd-owned",
    "markdown": "a|b`c`[x](javascript:alert(4))\n\n# h",
    "formula": '=HYPERLINK("http://evil.example")',
    "shell": "$(touch apd-owned) `touch apd-owned` ; touch apd-owned",
    "nul": "nul\x00byte",
    "long": "L" * 100_000,
}
RUNNING = ("script", "img", "iframe", "object", "embed", "link", "base", "form", "svg onload")


def apd(*arguments: str, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", "apd_replay", *arguments], cwd=cwd, capture_output=True, text=True, timeout=120)
    assert not check or done.returncode == 0, done.stderr[-2000:]
    return done


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole pipeline on a trace whose sessions are called that, and a run with logs that say it, imported."""
    folder = tmp_path_factory.mktemp("hostile")
    shutil.copytree(ROOT / "config", folder / "config")
    (folder / "config/config.yaml").write_text("trace: hostile.jsonl\nmatrix: two\nresults: results\n")
    (folder / "config/experiments/two.yaml").write_text(
        "defaults: {engine: sim, concurrency: 4, time_scale: 10, replicates: 1, start_spread_s: 1}\n"
        "experiments:\n  E0: {cluster: 2p6d, policy: kv_aware, resident: true, title: '<script>alert(5)</script>'}\n  E6: {cluster: 8dp, policy: cache_aware}\n")  # fmt: skip
    rows = [{"session_id": name, "turn": turn, "timestamp": 5.0 * turn, "input_length": 1000 + 400 * turn, "output_length": 20}
            for name in HOSTILE.values() for turn in range(3)]  # fmt: skip
    (folder / "hostile.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    apd("trace", "convert", "hostile.jsonl", "results/traces/hostile.parquet", cwd=folder)
    for experiment in ("E0@hostile", "E6@hostile"):
        apd("replay", experiment, "--replicate", "1", "--results", "results", "--trace", "results/traces/hostile.parquet", cwd=folder)
        apd("parse", "--run", f"results/runs/{experiment}/r1.json", "--out", "results/tables", "--experiment", experiment, "--replicate", "1", cwd=folder)
    apd("import", str(hostile_run(folder / "theirs")), "--as", "theirs", cwd=folder)
    apd("warehouse", cwd=folder)
    apd("claims", cwd=folder)
    apd("report", cwd=folder)
    return folder


def hostile_run(directory: Path) -> Path:
    """A foreign run: error messages, worker names and log lines of the same kind."""
    (directory / "logs").mkdir(parents=True)
    rows, lines = [], ["[2026-05-05 16:00:00] server_args=ServerArgs(model_path='m', disaggregation_mode='decode', tp_size=1)"]
    for k, text in enumerate(HOSTILE.values()):
        rows.append({"request_id": f"{k}-{text}", "session": text, "turn": 0, "path": "seed", "prefill_worker": text[:200], "decode_worker": "decode-0", "scheduled_t": 0.0,
                     "dispatched_t": 0.0, "first_token_t": None, "finished_t": 1.0, "input_tokens": 9, "output_tokens": None, "admission": "none", "bootstrap_room": k + 1,
                     "status": "error", "error_kind": "kv_transfer", "error_message": text})  # fmt: skip
        lines += [f"[2026-05-05 16:00:01] Session opened: {text} (active=1)", f"[2026-05-05 16:00:02] {text}",
                  f"[2026-05-05 16:00:03] Prefill transfer failed for request rank=0 req.rid='{text}' req.bootstrap_room={k + 1} with exception KVTransferError(bootstrap_room={k + 1}): {text}"]  # fmt: skip
    (directory / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / "logs/decode-0.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    manifest = {"experiment": "x", "replicate": 1, "engine": "imported", "status": "complete", "trace": "t", "time_scale": 1, "started_ts": 1777996800.0, "duration_s": 5.0,
                "requests": len(rows), "errors": len(rows), "model": HOSTILE["html"], "cluster": HOSTILE["markdown"], "policy": HOSTILE["sql"], "versions": {HOSTILE["html"]: HOSTILE["terminal"]},
                "config": {"title": HOSTILE["html"]}}  # fmt: skip
    (directory / "run.json").write_text(json.dumps(manifest))
    return directory


def ask(work: Path, query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(apd("sql", query, "--format", "json", cwd=work).stdout)
    return found


def test_every_session_arrives_unchanged(work: Path) -> None:
    """Escaping belongs to what is shown: data stays what it was, in every table and for both designs."""
    for experiment in ("E0@hostile", "E6@hostile", "theirs"):
        found = {row["session"] for row in ask(work, f"SELECT DISTINCT session FROM requests WHERE experiment = '{experiment}'")}
        assert found == set(HOSTILE.values())


def test_all_tables_are_still_there(work: Path) -> None:
    assert {row["experiment"] for row in ask(work, "SELECT experiment FROM runs")} == {"E0@hostile", "E6@hostile", "theirs"}
    assert ask(work, "SELECT count(*) AS n FROM verdicts")[0]["n"] > 10


def test_nothing_was_written_elsewhere_or_run(work: Path) -> None:
    assert not list(work.rglob("*apd-owned*")) and not Path("/tmp/apd-owned").exists() and not (ROOT / "apd-owned").exists()
    assert {p.name for p in work.iterdir()} == {"config", "hostile.jsonl", "results", "theirs"}


class Elements(HTMLParser):
    """All start tags with their attributes, as a browser's parser sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_the_report_shows_it_and_runs_nothing(work: Path) -> None:
    page = Elements()
    text = (work / "results/report/report.html").read_text(encoding="utf-8")
    page.feed(text)
    assert [tag for tag, _ in page.seen if tag in RUNNING] == ["script"], "its own, and no other"
    assert not [a for _, attributes in page.seen for a in attributes if a.startswith("on")]
    addresses = [v for _, attributes in page.seen for k, v in attributes.items() if k in ("href", "src", "action", "xlink:href") and v]
    assert not [a for a in addresses if ":" in a or a.startswith("/")], "only places in the page and files beside it"
    assert "7 * 7" not in text or "{{ 7 * 7 }}" in text, "a template's text stays text"
    assert "\x1b" not in text and "\x07" not in text and "\x00" not in text
    assert "&lt;script&gt;alert(1)" in text or "alert(1)" not in text


def test_figures_are_pictures_only(work: Path) -> None:
    import xml.etree.ElementTree as Tree

    figures = list((work / "results/report/figures").glob("*.svg"))
    assert figures
    for figure in figures:
        for element in Tree.parse(figure).iter():
            assert element.tag.rpartition("}")[2] not in ("script", "foreignObject", "image", "a")
            assert not [name for name in element.attrib if name.rpartition("}")[2].startswith("on") or name.endswith("href")]


@pytest.mark.parametrize("name", ["report/report.md", "claims/verdicts.md"])
def test_markdown_keeps_its_rows_and_has_no_live_link(work: Path, name: str) -> None:
    text = (work / "results" / name).read_text(encoding="utf-8")
    assert "<script>alert" not in text and "](javascript:" not in text and "\x1b" not in text
    tables = re.findall(r"(?:^\|.*\|$\n)+", text, re.MULTILINE)
    for table in tables:
        columns = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(columns) == 1, table[:300]


def test_csv_can_be_read_back(work: Path) -> None:
    rows = list(csv.DictReader(io.StringIO((work / "results/claims/verdicts.csv").read_text(encoding="utf-8"), newline="")))
    assert len(rows) > 10 and all(None not in row for row in rows)
    out = apd("sql", "SELECT DISTINCT session FROM requests WHERE experiment = 'theirs' ORDER BY 1", "--format", "csv", "--out", "s.csv", cwd=work)
    assert out.stdout == ""
    found = {row["session"] for row in csv.DictReader(io.StringIO((work / "s.csv").read_bytes().decode(), newline=""))}
    (work / "s.csv").unlink()
    assert {s for s in found if "\x00" not in s} >= {s for s in HOSTILE.values() if "\x00" not in s}


def test_what_is_printed_drives_no_terminal(work: Path) -> None:
    for query in ("SELECT session, error_message FROM requests", "SELECT * FROM unknown_lines", "SELECT versions, model, cluster FROM runs"):
        out = apd("sql", query, cwd=work).stdout
        assert not [c for c in out if c in "\x00\x07\x1b\x9b\u202e\u2028\r"]
    for arguments in (["trace", "stats", "hostile.jsonl"], ["compare", "E0@hostile", "E6@hostile"], ["claims"]):
        done = apd(*arguments, cwd=work)
        assert not [c for c in done.stdout + done.stderr if c in "\x00\x07\x1b\x9b\u202e\u2028"]


@pytest.mark.parametrize("kind", HOSTILE)
def test_an_error_message_drives_no_terminal_and_is_one_line(tmp_path: Path, kind: str) -> None:
    """The text as a value where a number belongs, and as a key of the configuration."""
    (tmp_path / "t.jsonl").write_text(json.dumps({"session_id": "s", "turn": 0, "timestamp": HOSTILE[kind], "input_length": HOSTILE[kind], "output_length": 1}) + "\n")
    refused = apd("trace", "stats", "t.jsonl", cwd=tmp_path, check=False)
    assert refused.returncode == 1 and len(refused.stderr.split("\n")) <= 4 and len(refused.stderr) < 2000
    assert not [c for c in refused.stdout + refused.stderr if c in "\x00\x07\x1b\x9b\u202e\u2028"]


@pytest.mark.parametrize("command", [["trace", "stats"], ["parse"], ["import", "--as", "x"], ["sql", "SELECT 1", "--results"]], ids=" ".join)
def test_a_name_that_is_typed_drives_no_terminal_either(tmp_path: Path, command: list[str]) -> None:
    refused = apd(*command, HOSTILE["terminal"], cwd=tmp_path, check=False)
    assert refused.returncode == 1 and "owned" in refused.stderr and len(refused.stderr.splitlines()) == 1
    assert not [c for c in refused.stderr if c in "\x07\x1b\x9b\u202e\u2028"]


@pytest.mark.parametrize("kind", [k for k in HOSTILE if k != "nul"])
def test_no_id_leads_out_of_the_folder(tmp_path: Path, kind: str) -> None:
    """As an experiment's id at import, as the id in a run.json, as a trace's name."""
    run = hostile_run(tmp_path / "run")
    refused = apd("import", str(run), "--as", HOSTILE[kind], cwd=tmp_path, check=False)
    assert refused.returncode == 1 and "cannot name a folder" in refused.stderr
    manifest = json.loads((run / "run.json").read_text())
    for key in ("experiment", "trace"):
        (run / "run.json").write_text(json.dumps({**manifest, key: HOSTILE[kind]}))
        refused = apd("import", str(run), cwd=tmp_path, check=False)
        assert refused.returncode == 1 and "cannot name a folder" in refused.stderr
        assert not [c for c in refused.stderr if c in "\x00\x07\x1b\x9b\u202e\u2028"] and len(refused.stderr) < 2000
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("kind", ["path", "shell", "html", "terminal", "formula"])
def test_an_experiment_of_the_configuration_can_not_either(tmp_path: Path, kind: str) -> None:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    (tmp_path / "config/experiments/matrix.yaml").write_text(json.dumps({"experiments": {HOSTILE[kind]: {"cluster": "8dp", "policy": "cache_aware"}}}))
    refused = apd("replay", HOSTILE[kind], "--replicate", "1", "--results", "results", cwd=tmp_path, check=False)
    assert refused.returncode == 1 and not (tmp_path / "results").exists(), refused.stderr
    assert not [c for c in refused.stderr if c in "\x07\x1b\x9b\u202e\u2028"]


def test_over_http_it_stays_text_too(work: Path, tmp_path: Path) -> None:
    """The real client against emulated workers: the ids go through JSON, URLs' bodies and the workers' logs."""
    shutil.copytree(work / "config", tmp_path / "config")
    (tmp_path / "config/experiments/http.yaml").write_text(
        "experiments:\n  H: {engine: emulator, cluster: 2p6d, policy: kv_aware, resident: true, concurrency: 8, time_scale: 10, replicates: 1, start_spread_s: 0}\n")  # fmt: skip
    shutil.copy2(work / "hostile.jsonl", tmp_path)
    apd("replay", "H", "--matrix", "http", "--replicate", "1", "--out", "run", cwd=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "run/requests.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 3 * len(HOSTILE) and {row["session"] for row in rows} == set(HOSTILE.values())
    refused = {row["session"] for row in rows if row["status"] != "ok"}
    assert refused == {HOSTILE[kind] for kind in ("terminal", "nul", "markdown")}, "what no log line may hold is refused, and all else is served"
    for log in (tmp_path / "run/logs").glob("*.log"):
        assert not [c for c in log.read_text(encoding="utf-8") if c in "\x00\x07\x1b\x9b\u202e\u2028\r"]
    assert {p.name for p in tmp_path.iterdir()} == {"config", "hostile.jsonl", "run"} and not Path("/tmp/apd-owned").exists()


def test_the_emulator_listens_on_this_machine_only(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "apd_replay", "emulate", "--help"]
    if subprocess.run(command, cwd=ROOT, capture_output=True).returncode:
        pytest.skip("no emulator in this build")
    found: list[str] = []
    with subprocess.Popen([*command[:-1], "E0"], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as serving:
        try:
            while serving.poll() is None and len(found) < 8:  # 2P6D: each worker has a port of its own
                found = listening(os.getpgid(serving.pid))
                time.sleep(0.1)
        finally:
            serving.terminate()
    assert len(found) >= 8 and all(address.startswith("127.0.0.1:") for address in found), found
