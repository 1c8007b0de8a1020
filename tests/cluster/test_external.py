"""Servers that somebody else runs: what a run gets of their logs, and how their caches are emptied."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from apd_replay.cluster import external
from apd_replay.cluster.excerpts import Excerpts
from apd_replay.errors import RunError
from apd_replay.replay.client import Address
from apd_replay.replay.http import Targets

START = b"# python\nserver_args=...\nThe server is fired up and ready to roll!\n"


def test_a_run_gets_a_servers_start_and_what_it_wrote_meanwhile(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    (logs / "events").mkdir(parents=True)
    log, events = logs / "decode-0.log", logs / "events/decode-0.jsonl"
    log.write_bytes(START + b"of an earlier run\n")
    events.write_bytes(b'{"event": "plugin_active"}\n{"event": "batch"}\n')
    excerpts = Excerpts(logs, ["decode-0"])
    with log.open("ab") as more, events.open("ab") as row:
        more.write(b"of this run\n")
        row.write(b'{"event": "trim"}\n')
    excerpts.take(tmp_path / "run")
    with log.open("ab") as more:
        more.write(b"of a later run\n")
    assert (tmp_path / "run/logs/decode-0.log").read_bytes() == START + b"of this run\n"
    assert (tmp_path / "run/events/decode-0.jsonl").read_bytes() == b'{"event": "plugin_active"}\n{"event": "trim"}\n'


def test_a_missing_log_is_named_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"worker-1\.log: no such file"):
        Excerpts(tmp_path, ["worker-1"])


@pytest.fixture
def server() -> Iterator[tuple[Targets, list[int]]]:
    """Refuses to empty its cache as long as the list has statuses to give."""
    refusals: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(refusals.pop() if refusals else 200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield Targets((Address("127.0.0.1", listening.server_port),)), refusals
        listening.shutdown()


def test_a_busy_server_is_asked_again_until_its_cache_is_empty(server: tuple[Targets, list[int]]) -> None:
    targets, refusals = server
    refusals += [400, 400]
    external.flush(targets)
    assert not refusals


def test_a_server_that_never_empties_its_cache_is_named(server: tuple[Targets, list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    targets, refusals = server
    refusals += [400] * 100
    monkeypatch.setattr(external, "FLUSH_LIMIT_S", 0.3)
    with pytest.raises(RunError, match=r"does not empty its cache within 0\.3 s: HTTP 400"):
        external.flush(targets)
