"""SGLang's POST /generate: the body that asks for an exact length, and the stream of events that answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from apd_replay.replay.client import Address, Client, Disconnected, Malformed
from apd_replay.replay.failures import Failure, kind_of, said_in

DIRECT = "direct"  # bootstrap_host of a turn that its D prefills itself (sglang_plugin)


def body(prompt: bytes, output_tokens: int, rid: str, temperature: float, bootstrap: dict[str, Any]) -> list[bytes]:
    """`prompt`: token ids as JSON, without brackets. `bootstrap`: the fields that join P and D, or none. Pieces, so that a long prompt is never copied."""
    sampling = {"max_new_tokens": output_tokens, "temperature": temperature, "ignore_eos": True}
    rest = json.dumps({"sampling_params": sampling, "stream": True, "rid": rid, **bootstrap})
    return [b'{"input_ids":[', prompt, b"],", rest[1:].encode()]


@dataclass(frozen=True, slots=True)
class Answer:
    """A stream that ended well. `output` is None where the server sends no token ids; `served_by` is the server's own word on itself."""

    output: list[int] | None
    completion_tokens: int
    prompt_tokens: int | None
    cached_tokens: int | None
    finish_reason: str
    retractions: int | None
    served_by: str | None


class _Events:
    """The events of one stream. Only the first two and the last are parsed where a server repeats the whole answer in each (SGLang's
    default), so that the cost does not grow with the square of the answer."""

    def __init__(self, on_first: Callable[[], None]) -> None:
        self._on_first = on_first
        self._started = False
        self._buffer = b""
        self._output: list[int] = []
        self._cumulative: bool | None = None
        self._last: bytes = b""
        self.meta: dict[str, Any] = {}
        self.error: str | None = None
        self.error_status: int | None = None
        self.ended = False

    def feed(self, piece: bytes) -> None:
        self._buffer += piece
        if not self._buffer.endswith(b"\n\n") and b"\n\n" not in self._buffer:
            return
        *events, self._buffer = self._buffer.split(b"\n\n")
        for event in events:
            data = event[5:].strip() if event.startswith(b"data:") else b""
            if data == b"[DONE]":
                self.ended = True
            elif data:
                self._event(data)

    def _event(self, data: bytes) -> None:
        if self._cumulative:
            self._last = data
            return
        found = json.loads(data)
        if "error" in found or "meta_info" not in found:
            self.error = said_in(data)
            self.error_status = _status(found.get("error"))
            return
        self.meta = found["meta_info"]
        ids = found.get("output_ids") or []
        if not self._started and (ids or found.get("text")):
            self._started = True
            self._on_first()
            self._output = list(ids)
        elif ids and self._cumulative is None:
            self._cumulative = len(ids) > 1 and len(ids) == self.meta.get("completion_tokens")
            self._output = ids if self._cumulative else self._output + ids
        else:
            self._output += ids

    def output(self) -> list[int]:
        if self._last:
            last, self._last, self._cumulative = self._last, b"", False
            found = json.loads(last)
            if "meta_info" not in found:
                self._event(last)
            else:
                self.meta, self._output = found["meta_info"], found.get("output_ids") or self._output
        return self._output


def _status(error: Any) -> int | None:
    code = error.get("code", error.get("status_code")) if isinstance(error, dict) else None
    return code if isinstance(code, int) else None


async def generate(client: Client, to: Address, pieces: list[bytes], now: Callable[[], float], *, on_sent: Callable[[], None] | None = None,
                   on_first: Callable[[], None] = lambda: None) -> Answer | Failure:
    """One request to one server. A refusal, an abort inside a 200 and a broken connection come back as a Failure, never as an exception."""
    events = _Events(on_first)
    try:
        response = await client.post(to, "/generate", pieces, on_body=events.feed, on_sent=on_sent)
        if response.status != 200:
            message = said_in(response.body)
            return Failure(kind_of(message, response.status), f"HTTP {response.status}: {message}", now())
        output = events.output()
    except Disconnected as error:
        return Failure("connection", f"{to.url}: {error}", now())
    except Malformed as error:
        return Failure("protocol", f"{to.url}: {error}", now())
    if events.error is not None:
        return Failure(kind_of(events.error, events.error_status), events.error, now())
    meta = events.meta
    reason = meta.get("finish_reason")
    if not isinstance(reason, dict):
        return Failure("protocol", f"{to.url}: the stream ended without a finish_reason", now())
    if reason.get("type") == "abort":
        message = str(reason.get("message") or "aborted")
        status = reason.get("status_code")
        return Failure(kind_of(message, status if isinstance(status, int) else None), message, now())
    return Answer(
        output=output or None, completion_tokens=int(meta.get("completion_tokens", len(output))), prompt_tokens=meta.get("prompt_tokens"),
        cached_tokens=meta.get("cached_tokens"), finish_reason=str(reason.get("type")),
        retractions=meta.get("num_retractions", meta.get("total_retractions")), served_by=meta.get("weight_version"),
    )  # fmt: skip
