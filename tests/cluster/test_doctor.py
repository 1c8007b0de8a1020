"""`apd doctor` and the table of what was tried."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from apd_replay.cluster import doctor
from apd_replay.cluster.command import doctor as command
from apd_replay.replay import environment

ROOT = Path(__file__).parent.parent.parent


def test_every_finding_that_is_not_ok_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.VARIABLE, "/no/such/python")
    findings = doctor.examine()
    assert {"GPUs", "SGLang", "ports", "shared memory", "open files"} <= {f.subject for f in findings}
    assert all(f.remedy for f in findings if f.verdict != "ok")
    assert next(f for f in findings if f.subject == "SGLang").verdict == "missing"


def test_something_broken_makes_the_command_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.VARIABLE, "/no/such/python")
    fine = CliRunner().invoke(command)
    assert fine.exit_code == 0 and "missing SGLang" in fine.output
    monkeypatch.setattr(doctor, "_ports", lambda: doctor.Finding("ports", "broken", "none", "mend them"))
    broken = CliRunner().invoke(command)
    assert broken.exit_code == 1 and "-> mend them" in broken.output


def test_few_open_files_are_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 4096))
    assert doctor._files().verdict == "doubt" and "4096" in doctor._files().remedy


def test_the_documentation_has_the_table_of_what_was_tried() -> None:
    page = (ROOT / "docs/sglang.md").read_text(encoding="utf-8").splitlines()
    start = page.index("| SGLang | torch | router | on | what |") + 2
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in page[start : start + len(environment.TRIED) + 1] if line.startswith("|")]
    assert tuple(rows) == environment.TRIED


def test_the_set_up_script_installs_a_version_that_was_tried() -> None:
    pinned = dict(line.split("==") for file in ("requirements.txt", "requirements-nodeps.txt")
                  for line in (ROOT / "workflow/sglang-cpu" / file).read_text().splitlines() if "==" in line and not line.startswith("#"))  # fmt: skip
    assert (pinned["sglang"], pinned["torch"], pinned["sglang-router"]) in {row[:3] for row in environment.TRIED}
