"""What the plugin is told, and the file of its events."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from apd_replay import configuration
from apd_replay.sglang_plugin import settings
from apd_replay.sglang_plugin.events import Events
from apd_replay.sglang_plugin.settings import Settings, SettingsError

ROOT = Path(__file__).parent.parent.parent


def test_the_plugin_sleeps_unless_it_is_asked_for() -> None:
    assert settings.read({}) is None
    assert settings.read({settings.VARIABLE: ""}) is None
    assert settings.read({settings.VARIABLE: "{}"}) == Settings()


def test_what_an_experiment_may_ask_for_is_what_the_plugin_knows() -> None:
    """The cluster stage, which comes first, tells the plugin these values without importing it."""
    schema = configuration._schema(ROOT / "config", "experiment")["properties"]
    assert tuple(schema["admission"]["enum"]) == settings.ADMISSION
    assert tuple(schema["eviction"]["enum"]) == settings.EVICTION
    assert tuple(schema["backpressure"]["enum"]) == settings.HINTS


@pytest.mark.parametrize(("text", "word"), [
    ("{", "JSON"), ("[]", "object"), ('{"mode": 1}', "mode"), ('{"admission": "fast"}', "fast"), ('{"hint": "cubic"}', "cubic"),
    ('{"admission_expires_s": 0}', "above 0"), ('{"overshoot_per_usage": true}', "above 0"),
])  # fmt: skip
def test_a_wrong_setting_is_named_in_one_line(text: str, word: str) -> None:
    with pytest.raises(SettingsError, match=word) as caught:
        settings.read({settings.VARIABLE: text})
    assert "\n" not in str(caught.value)


def test_events_are_lines_with_both_clocks(tmp_path: Path) -> None:
    first, second = Events(str(tmp_path / "e.jsonl")), Events(str(tmp_path / "e.jsonl"))
    for k in range(100):
        first.record("batch", k=k, mode="decode")
    second.record("trim", sessions=["a\nb"])
    first.close()
    second.close()
    rows = [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()]
    assert [r["k"] for r in rows if r["event"] == "batch"] == list(range(100))
    assert [r["sessions"] for r in rows if r["event"] == "trim"] == [["a\nb"]]
    assert all(r["pid"] == os.getpid() and r["mono"] > 0 and r["ts"] > 1.7e9 for r in rows)


def test_a_full_disk_ends_the_events_and_not_the_worker(capfd: pytest.CaptureFixture[str]) -> None:
    events = Events("/dev/full")
    events.record("batch")
    events._thread.join(5)
    events.record("batch")
    assert events._queue.empty(), "nobody would ever take it"
    events.close()
    assert capfd.readouterr().err.startswith("apd_replay events: none from here on: ")


def test_without_a_file_nothing_is_kept() -> None:
    events = Events(None)
    events.record("batch")
    events.close()
