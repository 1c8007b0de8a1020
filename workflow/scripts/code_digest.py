"""What a stage's code is, for Snakemake's params trigger: a digest of a module and all of the package that it imports.

Static, by ast: nothing is imported, and neither comments nor layout count. What a stage finds by its name instead of an
import (formats, SQL, templates) is given as folders; their data files count by their bytes. Good for stages that cost seconds; a replay goes by its engine revision instead, because
ast.dump differs between Python versions.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
from pathlib import Path

PACKAGE = "apd_replay"
SUFFIXES = (".py", ".sql", ".j2", ".css", ".js", ".yaml", ".json")


@functools.cache
def root() -> Path:
    """The folder of the package that the jobs will run, found without importing it."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{PACKAGE} is not installed in this Python: pip install -e .")
    return Path(spec.origin).parent


def code(*modules: str, folders: tuple[str, ...] = ()) -> str:
    """Digest of `modules` (dotted names in the package) with their closure, and of all files in `folders` of the package."""
    found = [file for folder in folders for file in (root() / folder).rglob("*") if file.suffix in SUFFIXES]
    digest = hashlib.sha256()
    for file in sorted({*closure(*modules), *found}):
        digest.update(f"{file.relative_to(root()).as_posix()}\0{_meaning(file)}\n".encode())
    return digest.hexdigest()[:16]


def closure(*modules: str) -> list[Path]:
    """Files of `modules` and of all modules of the package that they import, anywhere in their text."""
    seen: set[str] = set()
    todo = list(modules)
    files = set()
    while todo:
        module = todo.pop()
        if module in seen:
            continue
        seen.add(module)
        file = _file(module)
        if file is not None:
            files.add(file)
            todo.extend(_imports(file))
    return sorted(files)


def _file(module: str) -> Path | None:
    """None where `module` is a name inside a module rather than a module."""
    place = root().joinpath(*module.split("."))
    return next((f for f in (place.with_suffix(".py"), place / "__init__.py", place.with_suffix(".c")) if f.is_file()), None)


@functools.cache
def _imports(file: Path) -> frozenset[str]:
    if file.suffix == ".c":
        return frozenset()
    found: set[str] = set()
    package = file.relative_to(root()).parts[:-1]
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            found.update(_inside(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *(node.module or "").split(".")]).strip(".")
            else:
                base = _inside(node.module or "")
                if not base and node.module != PACKAGE:
                    continue
            found.update({base, *(f"{base}.{alias.name}".strip(".") for alias in node.names)})
    return frozenset(found - {""})


def _inside(module: str) -> str:
    """`logs.command` for `apd_replay.logs.command`; empty for what is not the package's."""
    return module.removeprefix(f"{PACKAGE}.") if module.startswith(f"{PACKAGE}.") else ""


@functools.cache
def _meaning(file: Path) -> str:
    content = file.read_bytes()
    return hashlib.sha256(ast.dump(ast.parse(content)).encode() if file.suffix == ".py" else content).hexdigest()
