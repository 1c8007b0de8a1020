"""Projects to run the workflow in; see small_project.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from small_project import Project, lay_out


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose report is made. Never changed: `copy_of` it."""
    project = lay_out(tmp_path_factory.mktemp("finished") / "project")
    project.snakemake("report")
    return project


@pytest.fixture
def project(finished: Project, tmp_path: Path) -> Project:
    """A finished project of the test's own."""
    shutil.copytree(finished.folder, tmp_path / "project", symlinks=True)
    return Project(tmp_path / "project")


@pytest.fixture
def fresh(tmp_path: Path) -> Project:
    """A project in which nothing has run yet."""
    return lay_out(tmp_path / "fresh")
