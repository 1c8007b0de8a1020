"""Commands on the pages: each exists, with every option, file and list of experiments that it names; what short ones print is what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from apd_replay.cli import apd

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(p for p in ROOT.glob("docs/*.md") if p.name != "cli.md"), ROOT / "config/README.md", ROOT / "evidence/README.md"]
BLOCK = re.compile(r"^```(?:bash|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`((?:apd|snakemake|python) [^`]+)`")


def commands(page: Path) -> list[list[str]]:
    """Words of every command in the page's shell blocks and between backticks; `a && b` are two."""
    text = page.read_text(encoding="utf-8")
    lines = [line for block in BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    lines += [" ".join(found.split()) for found in INLINE.findall(text)]
    out = []
    for line in lines:
        words = shlex.shlex(line, posix=True, punctuation_chars="&|;()<>")
        words.commenters, words.whitespace_split = "#", True
        command: list[str] = []
        for word in words:
            if set(word) <= set("&|;()<>"):
                out.append(command)
                command = []
            else:
                command.append(word)
        out.append(command)
    return [c for c in out if c]


EVERY = [(page, command) for page in PAGES for command in commands(page)]


def named(program: str) -> list[tuple[Path, list[str]]]:
    return [(page, command) for page, command in EVERY if command[0] == program]


def label(value: object) -> str:
    return value.name if isinstance(value, Path) else " ".join(value) if isinstance(value, list) else str(value)


def test_the_pages_have_commands() -> None:
    """So that the tests below have something to say."""
    assert len(named("apd")) > 30 and len(named("snakemake")) > 15 and {page.name for page, _ in EVERY} >= {"README.md", "cluster.md", "sql.md", "gpu.md"}


@pytest.mark.parametrize(("page", "command"), named("apd"), ids=label)
def test_apd_has_what_the_page_types(page: Path, command: list[str]) -> None:
    parser: click.Command = apd
    context = click.Context(apd, info_name="apd")
    words = command[1:]
    while words and isinstance(parser, click.Group):
        if words[0] in ("--help", "--version"):
            return
        found = parser.get_command(context, words[0])
        assert found is not None, f"apd has no {' '.join(command[1:])}"
        parser, words = found, words[1:]
    options = {name for parameter in parser.params if isinstance(parameter, click.Option) for name in parameter.opts}
    assert [word for word in words if word.startswith("--") and word.split("=")[0] not in options] == []


@pytest.mark.parametrize(("page", "command"), named("snakemake"), ids=label)
def test_the_workflow_has_what_the_page_types(page: Path, command: list[str]) -> None:
    rules = {name for file in (ROOT / "Snakefile", *ROOT.glob("rules/*.smk")) for name in re.findall(r"^rule (\w+):", file.read_text(), re.MULTILINE)}
    words = command[1:]
    assert set(words) & rules or words[0].startswith("-"), "a target"
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key in ("matrix", "remedies") and value != "tuned":  # apd tune writes that one
            assert (ROOT / f"config/experiments/{value}.yaml").is_file()
    if "--workflow-profile" in words:
        assert (ROOT / words[words.index("--workflow-profile") + 1]).is_dir()


@pytest.mark.parametrize(("page", "command"), [(page, c) for page, c in EVERY if any(w.startswith(("workflow/", "benchmarks/", "docs/", ".ci/")) for w in c)], ids=label)
def test_scripts_that_a_page_types_are_there(page: Path, command: list[str]) -> None:
    for word in command:
        if word.startswith(("workflow/", "benchmarks/", "docs/", ".ci/")):
            assert (ROOT / word).is_file(), word
    if "/" in command[0]:
        assert os.access(ROOT / command[0], os.X_OK)


def test_a_dry_run_prints_what_the_cluster_page_shows() -> None:
    page = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
    found = re.search(r"A dry run prints it.*?```bash\n(.*?)\n```\n\n```\n(.*?)\n```", page, re.DOTALL)
    assert found is not None
    words = shlex.split(found[1])
    done = subprocess.run([sys.executable, "-m", *words, "--quiet", "all"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert found[2] in done.stderr.splitlines()
