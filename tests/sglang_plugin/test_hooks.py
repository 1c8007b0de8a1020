"""Every hook's target stands in each SGLang that the plugin is for, with parameters that the hook knows. Reads sources, imports none.

The folders to read are named by APD_SGLANG_SOURCES (unpacked wheels, separated by colons); an SGLang in this environment or the one
that real-server tests use is read as well. Skipped where there is none.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from apd_replay.errors import RunError
from apd_replay.replay import environment
from apd_replay.sglang_plugin import hooks
from apd_replay.sglang_plugin.hooks import CALLED, HOOKS, Hook


def sources() -> Iterator[Path]:
    """Folders that hold the package `sglang`."""
    yield from (Path(p) for p in os.environ.get("APD_SGLANG_SOURCES", "").split(":") if p)
    try:
        interpreter = Path(environment.python())
    except RunError:
        return
    yield from interpreter.parent.parent.glob("lib/python*/site-packages")


FOUND = {m.group(1): folder for folder in sources() for info in folder.glob("sglang-*.dist-info") if (m := re.fullmatch(r"sglang-(.+)\.dist-info", info.name))}


def parameters(folder: Path, hook: Hook) -> tuple[str, ...] | None:
    """The parameters of the target's definition; a method may stand in a base class of the same package. None: not there."""
    parts = hook.path.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        file = folder.joinpath(*parts[:cut]).with_suffix(".py")
        if file.is_file():
            return _find(folder, ast.parse(file.read_text()), parts[cut:])
    return None


def _find(folder: Path, tree: ast.Module, names: list[str]) -> tuple[str, ...] | None:
    *owner, name = names
    body: list[ast.stmt] = tree.body
    if owner:
        found = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == owner[0]), None)
        if found is None:
            return None
        body = found.body
        bases = [b.id for b in found.bases if isinstance(b, ast.Name)]
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            a = node.args
            return tuple(x.arg for x in (*a.posonlyargs, *a.args, *([a.vararg] if a.vararg else []), *a.kwonlyargs, *([a.kwarg] if a.kwarg else [])))
    if owner:
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    if (alias.asname or alias.name) in bases:
                        file = folder.joinpath(*node.module.split(".")).with_suffix(".py")
                        found_there = _find(folder, ast.parse(file.read_text()), [alias.name, name]) if file.is_file() else None
                        if found_there is not None:
                            return found_there
    return None


@pytest.mark.skipif(not FOUND, reason="no SGLang here, and APD_SGLANG_SOURCES names none")
@pytest.mark.parametrize("version", sorted(FOUND) or ["none"])
@pytest.mark.parametrize("hook", [*HOOKS.values(), *CALLED], ids=lambda h: h.target.rpartition(".")[2])
def test_a_target_is_there_with_known_parameters(version: str, hook: Hook) -> None:
    if version not in hooks.TESTED:
        pytest.skip(f"the plugin refuses SGLang {version}")
    assert parameters(FOUND[version], hook) in hook.parameters


def test_an_untried_version_is_refused_by_name() -> None:
    for version in hooks.TESTED:
        hooks.check_version(version)
    with pytest.raises(hooks.HookError, match=r"0\.5\.22.*tried: 0\.5\.15\.post1, 0\.5\.21"):
        hooks.check_version("0.5.22")
