"""What SGLang says of one POST /generate, streamed or whole: the answer so far in every event, as it does by default."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable

from apd_replay.emulator.http import Connection
from apd_replay.replay.prompts import as_json, draw

DONE = b"data: [DONE]\n\n"


class Answer:
    """Tokens are drawn from the request's id: there is no model. `prompt_tokens` is what the worker counts, `worker` its word on itself."""

    __slots__ = ("_connection", "_said", "_streamed", "_text", "_worker", "cached_tokens", "done", "prompt_tokens", "retractions", "rid", "tokens")

    def __init__(self, connection: Connection, rid: str, worker: str, prompt_tokens: int, output_tokens: int, *, streamed: bool) -> None:
        self._connection, self._streamed, self._worker = connection, streamed, worker
        self.rid, self.prompt_tokens = rid, prompt_tokens
        self.tokens: array[int] = draw(f"answer:{rid}", output_tokens)
        self.cached_tokens = self.retractions = 0
        self.done = False
        self._said = 0  # tokens in the last event
        self._text = b""  # those tokens as JSON

    def progress(self, count: int) -> None:
        """`count` tokens are there."""
        if self._streamed and not self.done and count > self._said:
            self._connection.piece(b"data: " + self._state(count, "null") + b"\n\n")

    def finish(self, count: int) -> None:
        if self.done:
            return
        self.done = True
        state = self._state(count, f'{{"type": "length", "length": {count}}}')
        if self._streamed:
            self._connection.end(b"data: " + state + b"\n\n" + DONE)
        else:
            self._connection.reply(200, state)

    def fail(self, status: int, message: str) -> None:
        """Inside a 200 where the answer is streamed: SGLang has sent its head by then."""
        if self.done:
            return
        self.done = True
        if not self._streamed:
            self._connection.refuse(status, message)
            return
        reason = json.dumps({"type": "abort", "message": message, "status_code": status, "err_type": None})
        self._connection.end(b"data: " + self._state(self._said, reason) + b"\n\n" + DONE)

    def on_gone(self, gone: Callable[[], None]) -> None:
        """What to do if the client hangs up before the end."""
        self._connection.on_gone = gone

    def _state(self, count: int, finish_reason: str) -> bytes:
        if count > self._said:
            fresh = as_json(self.tokens[self._said : count])
            self._text = self._text + b"," + fresh if self._text else fresh
            self._said = count
        meta = (f'{{"id": {json.dumps(self.rid)}, "finish_reason": {finish_reason}, "prompt_tokens": {self.prompt_tokens}, '
                f'"completion_tokens": {count}, "cached_tokens": {self.cached_tokens}, "num_retractions": {self.retractions}, '
                f'"weight_version": "{self._worker}"}}')  # fmt: skip
        return b'{"text": "", "output_ids": [' + self._text + b'], "meta_info": ' + meta.encode() + b"}"
