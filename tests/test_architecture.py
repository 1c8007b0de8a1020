"""The house rules of DESIGN that a machine can check."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "apd_replay"
STAGES = ["trace", "routing", "replay", "cluster", "sglang_plugin", "sim", "emulator", "logs", "warehouse", "claims", "report"]
# replay/plan and trace share the configuration and the schemas; cli and engines put the stages together
GROUND = {"schemas", "errors", "configuration", "__init__"}
COMPOSITION = {"cli", "engines", "cells", "tuning", "__main__"}


def imports(file: Path) -> set[str]:
    """First part below `apd_replay` of every module that the file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{a.name}" for a in node.names] if node.module == "apd_replay" else [node.module]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        found |= {n.split(".")[1] for n in names if n.startswith("apd_replay.")}
    return found


@pytest.mark.parametrize("stage", STAGES)
def test_no_stage_imports_a_later_one(stage: str) -> None:
    later = set(STAGES[STAGES.index(stage) + 1 :]) | COMPOSITION
    for file in sorted((PACKAGE / stage).rglob("*.py")):
        assert not imports(file) & later, f"{file.relative_to(PACKAGE)} imports {imports(file) & later}"


def test_shared_ground_imports_no_stage() -> None:
    for file in PACKAGE.glob("*.py"):
        if file.stem in GROUND:
            assert not imports(file) & (set(STAGES) | COMPOSITION), file.name


def test_every_folder_is_a_stage() -> None:
    assert {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"} == set(STAGES)
