"""Worker logs in SGLang's own wording, as 0.5.14 prints it at TP1 (SGLANG.md, section 1). Local time is UTC.

The sentences are SGLang's because the parser must not know who wrote a line; `Session trim` is this project's own (stock has no such line).
"""

from __future__ import annotations

from datetime import date
from pathlib import Path

FLUSH_AT = 4096  # lines kept before they are written
EPOCH = date(1970, 1, 1).toordinal()


class WorkerLog:
    """One worker's log file; `path` None keeps nothing. `t` is seconds since the run's start."""

    __slots__ = ("_date", "_day", "_file", "_lines", "_second", "_stamp", "_started_ts", "on")

    def __init__(self, path: Path | None, started_ts: float) -> None:
        self.on = path is not None
        self._file = open(path, "w", encoding="utf-8") if path is not None else None  # noqa: SIM115
        self._lines: list[str] = []
        self._started_ts = started_ts
        self._second, self._stamp = -1, ""
        self._day, self._date = -1, ""

    def stamp(self, t: float) -> str:
        second = int(self._started_ts + t)
        if second != self._second:
            self._second = second
            day, rest = divmod(second, 86400)
            if day != self._day:
                self._day, self._date = day, date.fromordinal(EPOCH + day).isoformat()
            self._stamp = f"[{self._date} {rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}] "
        return self._stamp

    def write(self, t: float, message: str) -> None:
        if self.on:
            lines = self._lines
            lines.append(self.stamp(t) + message + "\n")
            if len(lines) >= FLUSH_AT:
                self.flush()

    def extend(self, lines: list[str]) -> None:
        """Whole lines, stamps and ends included."""
        self._lines.extend(lines)
        if len(self._lines) >= FLUSH_AT:
            self.flush()

    def flush(self) -> None:
        if self._file is not None:
            self._file.write("".join(self._lines))
        self._lines.clear()

    def sync(self) -> None:
        """What was written so far is in the file, for whoever reads a log that still grows."""
        self.flush()
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            self._file.close()


def start_up(log: WorkerLog, mode: str, pool_tokens: int, chunk_tokens: int, max_running: int, context_tokens: int, model: str) -> None:
    """`mode`: `prefill`, `decode` or `null`."""
    log.write(0.0, f"server_args=ServerArgs(model_path={model!r}, disaggregation_mode={mode!r}, tp_size=1)")
    log.write(0.0, f"max_total_num_tokens={pool_tokens}, chunked_prefill_size={chunk_tokens}, max_prefill_tokens=16384, "
                   f"max_running_requests={max_running}, context_len={context_tokens}")  # fmt: skip
    log.write(0.0, "The server is fired up and ready to roll!")


def prefill_failed(rid: str, room: int | None, reason: str) -> str:
    return (f"Prefill transfer failed for request rank=0 req.rid={rid!r} req.bootstrap_room={room} with exception "
            f"KVTransferError(bootstrap_room={room}): {reason}")  # fmt: skip


def bootstrap_failed(rid: str, room: int | None, reason: str) -> str:
    return (f"Prefill bootstrap failed for request rank=0 req.rid={rid!r} req.bootstrap_room={room} with exception "
            f"KVTransferError(bootstrap_room={room}): {reason}")  # fmt: skip


def decode_failed(rid: str, room: int | None, reason: str) -> str:
    return (f"Decode transfer failed for request rank=0 decode_req.req.rid={rid!r} decode_req.req.bootstrap_room={room} with exception "
            f"KVTransferError(bootstrap_room={room}): {reason}")  # fmt: skip


def handshake_failed(rid: str, room: int | None, reason: str) -> str:
    return (f"Decode handshake failed for request rank=0 decode_req.req.rid={rid!r} decode_req.req.bootstrap_room={room} with exception "
            f"KVTransferError(bootstrap_room={room}): {reason}")  # fmt: skip


def chunk_not_sent(room: int | None, status_endpoint: str) -> str:
    return f"Failed to send kv chunk of {room} to {status_endpoint}"


def peer_dead(session_endpoint: str) -> str:
    return f"Decode instance could be dead, remote mooncake session {session_endpoint} is not alive"


def timed_out(room: int | None, seconds: float, phase: str) -> str:
    return f"Request {room} timed out after {seconds:.1f}s in KVPoll.{phase}"


ABORTED = "Aborted by AbortReq."
PREFILL_GAVE_UP = "Failed to get kvcache from prefill instance, it might be dead"
NIXL_SENDER = "NIXL KVSender Exception"


def retracted(count: int, gained: int) -> str:
    return f"KV cache pool is full. Retract requests. #retracted_reqs: {count}, #new_tokens_gained: {gained}"


def out_of_memory(rid: str) -> str:
    return f"retract_decode: aborted last request {rid} due to OOM"


OUT_OF_MEMORY_CLIENT = "Out of memory even after retracting all other requests in the decode batch. Aborting the last request."


def too_long(rid: str, needed: int, most: int) -> str:
    return f"Request {rid} exceeds the maximum number of tokens: {needed} > {most}"


def trimmed(sessions: int, tokens: int) -> str:
    return f"Session trim: evicted {sessions} idle sessions, {tokens} tokens freed"


def session_opened(session: str, active: int) -> str:
    return f"Session opened: {session} (active={active})"


def session_closed(session: str, active: int) -> str:
    return f"Session closed: {session} (active={active})"


def session_released(session: str, tokens: int) -> str:
    return f"Session KV released: {session} ({tokens} tokens freed)"
