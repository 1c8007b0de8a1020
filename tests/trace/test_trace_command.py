"""`apd trace`: figures on stdout, what was odd on stderr, one line and status 1 for a file that cannot be read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


def apd(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "apd_replay", "trace", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)


def test_stats_as_json(write: Any, turn: Any) -> None:
    file = write("f.jsonl", turn("a", 1, 0, 5), turn("a", 2, 2.5, "9"))
    done = apd("stats", file, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 0 and done.stderr == "" and found["requests"] == 2 and found["gap_s"]["p50"] == 2.5
    assert found["file"]["format"] == "session" and found["file"]["unit"] == "seconds" and found["file"]["numbers_in_quotes"] == 1


def test_stats_for_people(write: Any, turn: Any) -> None:
    done = apd("stats", write("f.jsonl", turn("a", 1, 0, 5), turn("a", 2, 2.5, 9)))
    assert "requests              2\n" in done.stdout and "p50 2.5" in done.stdout
    assert "read as session, timestamps in seconds" in done.stderr and "differences of send times" in done.stderr


def test_strict_and_lenient(write: Any, turn: Any, tmp_path: Path) -> None:
    file, out = write("f.jsonl", turn("a", 1, 0, 5), turn("a", 2, 2.5, 0.5), turn("a", 3, 3.5, 7)), tmp_path / "out.parquet"
    done = apd("convert", file, out)
    assert done.returncode == 1 and not out.exists() and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"apd: {file}:2: column input_length: expected a whole number")
    done = apd("convert", file, out, "--lenient")
    assert done.returncode == 0 and "rows rejected: 1 (line 2" in done.stderr and "2 requests in 1 sessions" in done.stdout
    assert json.loads(apd("stats", out, "--json").stdout)["requests"] == 2


def test_the_built_in_trace() -> None:
    assert json.loads(apd("stats", "swebench-52", "--json").stdout)["requests"] == 4449
    done = apd("stats", "swebench-53")
    assert done.returncode == 1 and "no such trace" in done.stderr and "swebench-52" in done.stderr


def test_reading_imports_no_database(write: Any, turn: Any) -> None:
    file = write("f.jsonl", turn("a", 1, 0, 5))
    code = f"import sys; from apd_replay.trace.load import load; load({str(file)!r}); sys.exit(bool({{'pyarrow', 'duckdb'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
