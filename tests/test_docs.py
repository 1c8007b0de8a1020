"""Documentation that follows from code is current, and what it points to exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from apd_replay import schemas

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "config/README.md", ROOT / "results/README.md"]


def test_generated_pages_are_current() -> None:
    check = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert check.returncode == 0, check.stdout + check.stderr


def test_every_table_and_column_is_documented() -> None:
    page = (ROOT / "docs/tables.md").read_text()
    for table in schemas.TABLES.values():
        section = page.split(f"## {table.name}\n", 1)[1].split("\n## ", 1)[0]
        assert [c for c in table.names if f"| `{c}` |" not in section] == [], table.name
        assert all(c.doc for c in table.columns)


def test_every_option_has_help() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    assert re.findall(r"^\| `(-[^`]*)` \|\s*\|$", page, re.MULTILINE) == []
    assert re.findall(r"^## (apd .*)\n\n`.*`\n\n\n", page, re.MULTILINE) == [], "commands without help"


def test_every_configuration_key_has_a_description() -> None:
    def bare(schema: dict, prefix: str) -> list[str]:
        found = []
        for key, rule in schema.get("properties", {}).items():
            found += [f"{prefix}{key}"] * ("description" not in rule) + bare(rule, f"{prefix}{key}.")
        return found

    for file in sorted((ROOT / "config/schema").glob("*.yaml")):
        assert bare(yaml.safe_load(file.read_text()), f"{file.stem}.") == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    linked = re.findall(r"\]\(((?!https?:|#)[^)#]+)(?:#[^)]*)?\)", text)
    named = re.findall(r"`((?:docs|config|tests|workflow|apd_replay|rules|profiles)/[\w./-]+\.\w+)`", text)
    missing = [target for target in linked if not (page.parent / target).exists()]
    missing += [target for target in named if not (ROOT / target).exists()]
    assert missing == []


def test_both_readmes_have_the_same_commands() -> None:
    def commands(name: str) -> list[str]:
        blocks = re.findall(r"```bash\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)
        return [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]

    assert commands("README.md") == commands("README.zh-CN.md")
    assert "pytest" in commands("README.md")
