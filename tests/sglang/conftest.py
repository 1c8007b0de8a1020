"""Real SGLang servers for the tests of this folder: one cluster for all cases that can share it, started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from real_servers import Cluster, specs_of_the_cluster

from apd_replay.cluster.servers import Servers
from apd_replay.errors import RunError
from apd_replay.replay import environment


@pytest.fixture(scope="session")
def interpreter(pytestconfig: pytest.Config) -> str:
    try:
        found = environment.python()
    except RunError:
        pytest.skip(f"no SGLang on this machine; {environment.SET_UP} sets it up, or {environment.VARIABLE} names its Python")
    if "sglang" not in environment.versions(found):
        pytest.skip(f"{found} has no SGLang; {environment.SET_UP} sets it up")
    return found


@pytest.fixture(scope="session", autouse=True)
def _only_where_there_is_sglang(interpreter: str) -> None: ...


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "logs").mkdir()
    specs = specs_of_the_cluster(folder)
    with Servers(specs, folder / "logs") as servers:
        yield Cluster(servers, {s.name: s for s in specs})
