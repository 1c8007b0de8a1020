"""This package in a folder of the import path, with the metadata by which its entry points are found (SGLang's plugin is one)."""

from __future__ import annotations

import argparse
import importlib.metadata
import shutil
import tomllib
from pathlib import Path

import apd_replay

NAME = "apd-replay"


def entry_points() -> dict[str, dict[str, str]]:
    """{group: {name: target}}: from pyproject.toml where the package lies in its source tree, else from its installation."""
    project = Path(apd_replay.__file__).parents[1] / "pyproject.toml"
    if project.is_file():
        declared = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        return {"console_scripts": declared.get("scripts", {}), **declared.get("entry-points", {})}
    groups: dict[str, dict[str, str]] = {}
    for point in importlib.metadata.distribution(NAME).entry_points:
        groups.setdefault(point.group, {})[point.name] = point.value
    return groups


def put(site: Path) -> None:
    """Copy the package to `site` and write its dist-info folder; an earlier copy is replaced."""
    source = Path(apd_replay.__file__).parent
    shutil.rmtree(site / source.name, ignore_errors=True)
    shutil.copytree(source, site / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    info = site / f"{NAME.replace('-', '_')}-{apd_replay.__version__}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {apd_replay.__version__}\n")
    lines = []
    for group, points in entry_points().items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("site", type=Path)
    put(arguments.parse_args().site)
