"""A small copy of the project: two experiments, two replicates, a trace of three sessions, the package included.

The package is copied so that tests can edit code; PYTHONPATH puts the copy before the installed one, for Snakemake and its jobs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

CONFIG = "trace: tiny.jsonl\nmatrix: tiny\nresults: results\n"
EXPERIMENTS = """\
defaults: {engine: sim, concurrency: 2, time_scale: 10, replicates: 2}
experiments:
  A: {cluster: 2p6d, policy: kv_aware, resident: true}
  B: {cluster: 8dp, policy: cache_aware}
"""


def tiny_trace() -> str:
    rows = []
    for s in range(3):
        tokens = 1000 + 100 * s
        for turn in range(4):
            rows.append({"session_id": f"s{s}", "turn": turn, "timestamp": s + 5.0 * turn, "input_length": tokens, "output_length": 50,
                         "hash_ids": list(range(1000 * s, 1000 * s - (-tokens // 512)))})  # fmt: skip
            tokens += 400
    return "".join(json.dumps(row) + "\n" for row in rows)


@dataclass(frozen=True)
class Project:
    """A project folder. `snakemake` runs there; `stale` says which jobs a dry run would do."""

    folder: Path

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return {**os.environ, "PATH": path, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]

    def snakemake(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(self.command(*arguments), cwd=self.folder, env=self.environment(), capture_output=True, text=True, timeout=300)
        if check and done.returncode:
            logs = "".join(f"--- {log}\n{log.read_text()}" for log in sorted(self.folder.glob("logs/**/*.log")) if log.stat().st_size)
            raise AssertionError(f"snakemake {' '.join(arguments)}: {done.stderr[-4000:]}\n{logs[-4000:]}")
        return done

    def stale(self, *arguments: str) -> dict[str, int]:
        """Jobs that would run, by rule, without the target rule."""
        out = self.snakemake("--dry-run", "--quiet=host", *arguments)
        jobs = {rule: int(n) for rule, n in re.findall(r"^(\w+) +(\d+)$", out.stdout + out.stderr, re.MULTILINE)}
        return {rule: n for rule, n in jobs.items() if rule not in ("total", "report")}

    def stored(self) -> dict[str, int]:
        """Sealed runs and when they were sealed."""
        return {p.name: p.stat().st_mtime_ns for p in (self.folder / "results/store").glob("[!.]*")}

    def edit(self, file: str, old: str, new: str) -> None:
        place = self.folder / file
        text = place.read_text()
        assert old in text, f"{file} has no {old!r}"
        place.write_text(text.replace(old, new, 1))


def lay_out(folder: Path) -> Project:
    for name in ("rules", "workflow", "config", "profiles", "apd_replay"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "sglang-cpu"))
    shutil.copy2(ROOT / "Snakefile", folder / "Snakefile")
    (folder / "config/config.yaml").write_text(CONFIG)
    (folder / "config/experiments/tiny.yaml").write_text(EXPERIMENTS)
    (folder / "tiny.jsonl").write_text(tiny_trace())
    return Project(folder)
