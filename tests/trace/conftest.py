"""Trace files that the tests write themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write("name.jsonl", record, record, "raw line", ...) -> path; bytes are written as they are."""

    def _write(name: str, *lines: dict[str, Any] | str | bytes) -> Path:
        file = tmp_path / name
        if lines and isinstance(lines[0], bytes):
            file.write_bytes(lines[0])
        else:
            file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))  # type: ignore[arg-type]
        return file

    return _write


@pytest.fixture
def turn() -> Callable[..., dict[str, Any]]:
    """One record of session JSONL."""

    def _turn(session: object, number: int, at: float, prompt: object, answer: object = 10, **more: object) -> dict[str, Any]:
        return {"session_id": session, "turn": number, "timestamp": at, "input_length": prompt, "output_length": answer, **more}

    return _turn
