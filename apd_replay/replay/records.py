"""The files of a run directory that the replay itself writes (CONTRACT: requests.jsonl, structural/*.jsonl, run.json).

Rows leave as they happen, so that a killed run keeps what it had; run.json is written last and marks the directory as whole.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import IO, Any

from apd_replay.replay.core import AdmissionAnswer, Request


class RunWriter:
    """Journal of one run. `started_ts`: UTC epoch of t = 0. Use as a context manager; `finish` writes run.json."""

    def __init__(self, directory: Path, started_ts: float, *, disaggregated: bool) -> None:
        self.directory, self.started_ts = directory, started_ts
        self._decode_name = "decode" if disaggregated else "worker"
        (directory / "structural").mkdir(parents=True, exist_ok=True)
        (directory / "logs").mkdir(exist_ok=True)
        self._requests = self._open("requests.jsonl")
        self._admissions = self._open("structural/admission-events.jsonl")
        self._pauses = self._open("structural/backpressure-events.jsonl")
        self._bindings = self._open("structural/session-d-binding.jsonl")
        self.rows = self.errors = 0

    def _open(self, name: str) -> IO[str]:
        return open(self.directory / name, "w", encoding="utf-8")

    def decode_name(self, worker: int) -> str:
        return f"{self._decode_name}-{worker}"

    def request(self, r: Request) -> None:
        self.rows += 1
        self.errors += r.status == "error"
        text = encode_basestring_ascii
        prefill = "null" if r.prefill is None else f'"prefill-{r.prefill}"'
        decode = "null" if r.decode < 0 else f'"{self._decode_name}-{r.decode}"'
        self._requests.write(  # json.dumps of the same row takes three times as long, and a simulated run writes many
            f'{{"request_id": {text(r.id)}, "session": {text(r.session)}, "turn": {r.turn}, "path": "{r.path}", '
            f'"prefill_worker": {prefill}, "decode_worker": {decode}, '
            f'"scheduled_t": {_time(r.scheduled_t)}, "dispatched_t": {_time(r.dispatched_t)}, "first_token_t": {_time(r.first_token_t)}, '
            f'"finished_t": {_time(r.finished_t)}, "input_tokens": {r.input_tokens}, "cached_tokens": {_null(r.cached_tokens)}, '
            f'"output_tokens": {_null(r.output_tokens)}, "admission": "{r.admission}", "pause_ms": {round(r.pause_ms, 3)!r}, '
            f'"bootstrap_room": {_null(r.room)}, "status": "{r.status}", "error_kind": {_text(r.error_kind)}, '
            f'"error_message": {_text(r.error_message)}, "asked_output_tokens": {r.asked_output_tokens}, '
            f'"finish_reason": {_text(r.finish_reason)}, "retractions": {_null(r.retractions)}, "slot_lost": {_boolean(r.slot_lost)}}}\n'
        )

    def admission(self, t: float, r: Request, answer: AdmissionAnswer, latency_s: float) -> None:
        row = {"timestamp": self._stamp(t), "session": r.session, "D": self.decode_name(r.decode), "can_admit": answer.can_admit,
               "queue_depth": answer.queue_depth, "pause_ms": answer.recommended_pause_ms, "latency_s": round(latency_s, 6),
               "available_tokens": answer.available_tokens, "evicted_session_count": answer.evicted_session_count}  # fmt: skip
        self._admissions.write(json.dumps(row) + "\n")

    def pause(self, t: float, decode: int, sleep_s: float, queue_depth: int | None) -> None:
        row = {"timestamp": self._stamp(t), "D": self.decode_name(decode), "sleep_ms": round(sleep_s * 1000.0, 3), "queue_depth_at_signal": queue_depth}
        self._pauses.write(json.dumps(row) + "\n")

    def binding(self, t: float, r: Request) -> None:
        row = {"timestamp": self._stamp(t), "session": r.session, "D": self.decode_name(r.decode), "turn_id": r.turn}
        self._bindings.write(json.dumps(row) + "\n")

    def _stamp(self, t: float) -> float:
        return round(self.started_ts + t, 6)

    def close(self) -> None:
        for file in (self._requests, self._admissions, self._pauses, self._bindings):
            file.close()

    def finish(self, manifest: dict[str, Any]) -> None:
        """Close the rows, then write run.json: from here on the directory is a whole run."""
        self.close()
        (self.directory / "run.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _time(t: float | None) -> str:
    return "null" if t is None else repr(round(t, 6))


def _null(number: int | None) -> str:
    return "null" if number is None else str(number)


def _text(text: str | None) -> str:
    return "null" if text is None else encode_basestring_ascii(text)


def _boolean(value: bool | None) -> str:
    return "null" if value is None else "true" if value else "false"
