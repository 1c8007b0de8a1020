"""Which run is it? The digest of all that decides a run: experiment, replicate, engine revision, environment and trace.

A run on GPUs costs an hour, so the code does not enter by its bytes but by a revision that a person raises
(revisions.json). Its `code` is the digest of the files that decide a replay when the revision was last confirmed; a test
fails when they have drifted since, until somebody says with workflow/scripts/revision.py whether results change.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from apd_replay.configuration import Experiment
from apd_replay.errors import RunError
from apd_replay.replay import environment as servers_environment

PACKAGE = Path(__file__).parent.parent
REVISIONS = Path(__file__).with_name("revisions.json")

_SHARED = ("trace/model.py", "routing/*.py", "replay/core.py", "replay/plan.py", "replay/hints.py", "replay/eviction.py", "replay/records.py")
_CLIENT = (*(f"replay/{name}.py" for name in ("http", "client", "generate", "prompts", "failures", "admission", "loads", "health", "environment")), "cluster/*.py")
DECIDING_CODE = {
    "sim": (*_SHARED, "sim/*.py"),
    "emulator": (*_SHARED, *_CLIENT, "sim/*.py", "emulator/*.py"),
    "sglang": (*_SHARED, *_CLIENT, "sglang_plugin/**/*.py"),
}
"""Files of the package that decide what a replay does, by engine; commands only parse options."""


def revision(engine: str) -> int:
    return int(json.loads(REVISIONS.read_text(encoding="utf-8"))[engine]["revision"])


def deciding_files(engine: str) -> list[Path]:
    found = {file for pattern in DECIDING_CODE[engine] for file in PACKAGE.glob(pattern)}
    return sorted(file for file in found if file.name != "command.py")


def code_digest(engine: str) -> str:
    """sha256 of the deciding files' names and bytes; bytes, because a parsed form differs between Python versions."""
    digest = hashlib.sha256()
    for file in deciding_files(engine):
        digest.update(f"{file.relative_to(PACKAGE).as_posix()}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def environment(engine: str) -> dict[str, str]:
    """Versions of what else decides a run: nothing for the simulator; for real servers SGLang and what moves its KV, in the
    environment that would run them. Where there is none, a run can be planned but not made."""
    if engine != "sglang":
        return {}
    try:
        found = servers_environment.versions(servers_environment.python())
    except RunError:
        return {}
    return {name: version for name, version in found.items() if name not in ("apd-replay", "python")}


def cell(experiment: Experiment, replicate: int) -> str:
    """Digest of all that decides a run but its trace: known before the trace has been read."""
    engine = experiment["engine"]
    parts = {"experiment": experiment.as_json(), "replicate": replicate, "revision": revision(engine), "environment": environment(engine)}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def run_id(experiment: Experiment, replicate: int, trace_digest: str, *, expected: str | None = None) -> str:
    """Sixteen hex digits. `expected` is the cell the caller planned: another one means that something was edited since."""
    found = cell(experiment, replicate)
    if expected not in (None, found):
        raise RunError(f"{experiment.id} r{replicate}: configuration, engine revision or environment changed since this job was planned "
                       f"({expected} then, {found} now); start the workflow again")
    return hashlib.sha256(f"{found} {trace_digest}".encode()).hexdigest()[:16]
