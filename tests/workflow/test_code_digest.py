"""A stage's code digest follows its imports and its data files, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "workflow" / "scripts"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    files = {
        "__init__.py": "",
        "errors.py": "class ApdError(Exception): ...\n",
        "logs/__init__.py": "",
        "logs/command.py": "def parse():\n    from apd_replay.logs import lines\n    from .. import errors\n",
        "logs/lines.py": "import re\nfrom apd_replay.logs.numbers import number\n",
        "logs/numbers.py": "def number(text):\n    return int(text)\n",
        "claims/__init__.py": "",
        "claims/rules.py": "x = 1\n",
        "claims/s1.sql": "select 1",
    }
    for name, text in files.items():
        file = tmp_path / "apd_replay" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "apd_replay"


@pytest.fixture
def digest(package: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import code_digest

    monkeypatch.setattr(code_digest, "root", lambda: package)
    yield code_digest
    del sys.modules["code_digest"]


def refreshed(digest: ModuleType) -> ModuleType:
    digest._imports.cache_clear()
    digest._meaning.cache_clear()
    return digest


def test_the_closure_follows_lazy_and_relative_imports(digest: ModuleType, package: Path) -> None:
    names = [f.relative_to(package).as_posix() for f in digest.closure("logs.command")]
    assert names == ["errors.py", "logs/__init__.py", "logs/command.py", "logs/lines.py", "logs/numbers.py"]


@pytest.mark.parametrize(
    ("file", "text", "stale"),
    [
        ("logs/numbers.py", "def number(text):\n    return float(text)\n", True),
        ("logs/numbers.py", "# why\ndef number(text):\n\n    return int( text )  # here\n", False),
        ("claims/rules.py", "x = 2\n", False),
    ],
)
def test_an_edit_counts_by_its_meaning_and_its_place(digest: ModuleType, package: Path, file: str, text: str, stale: bool) -> None:
    before = digest.code("logs.command")
    (package / file).write_text(text)
    assert (refreshed(digest).code("logs.command") != before) is stale


def test_data_files_count_by_their_bytes(digest: ModuleType, package: Path) -> None:
    before = digest.code("claims.rules", folders=("claims",))
    (package / "claims/s1.sql").write_text("select 2")
    refreshed(digest)
    assert digest.code("claims.rules", folders=("claims",)) != before


def test_the_stages_of_the_project_have_closures() -> None:
    """Every module the rules name exists: a misspelt one would give a digest of nothing."""
    import re

    root = SCRIPTS.parents[1]
    named = {m for rule in (root / "rules").glob("*.smk") for m in re.findall(r'code\(((?:"[\w.]+"(?:, )?)+)', rule.read_text())}
    modules = {m for group in named for m in re.findall(r'"([\w.]+)"', group)}
    assert modules, "no rule has a code digest"
    missing = [m for m in modules if not (root / "apd_replay" / (m.replace(".", "/") + ".py")).is_file()]
    assert missing == []
