"""Prompts as token ids: as long as the trace says, sharing what the trace shares, the same on every run of a seed.

A prompt's head is the session's history: the previous prompt and the answer that was really generated (or a stand-in of the
same length). What follows is drawn: from the ids of the trace's blocks where it has them, so that sessions share what they
shared, else from session and turn, so that no two sessions ever share by accident.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from apd_replay.replay.core import Request
    from apd_replay.trace.model import Trace

FIRST_TOKEN, LAST_TOKEN = 100, 999  # in every model's vocabulary, above the special tokens of most
_TEXT_OF = [str(token) for token in range(LAST_TOKEN + 1)]


def draw(key: str, count: int) -> array[int]:
    """`count` token ids that depend on `key` alone."""
    import numpy as np  # Arrow has loaded it by the time a run starts

    halves = np.frombuffer(Random(key).randbytes(2 * count), "<u2")
    return array("i", (FIRST_TOKEN + halves % (LAST_TOKEN - FIRST_TOKEN + 1)).astype("i4").tobytes())


def as_json(tokens: Sequence[int]) -> bytes:
    """Without brackets. The tokens that `draw` gives are looked up, in a third of the time."""
    try:
        return ",".join(map(_TEXT_OF.__getitem__, tokens)).encode()
    except IndexError:  # a server's own
        return ",".join(map(str, tokens)).encode()


class Prompts:
    """`generated`: follow-up prompts carry the tokens that were really generated; otherwise stand-ins, as after a failed turn."""

    def __init__(self, trace: Trace, seed: int, *, generated: bool) -> None:
        self._seed, self._generated = seed, generated
        self._block_size = {s.id: s.turns[0].block_size for s in trace.sessions if s.turns}
        self._history: dict[str, array[int]] = {}  # previous prompt + its answer
        self._text: dict[str, bytes] = {}  # the same as JSON, without brackets

    def build(self, request: Request) -> tuple[array[int], bytes]:
        """The prompt of a turn that is due next in its session: token ids, and the same as JSON without brackets."""
        kept = min(request.history_tokens, request.input_tokens)
        history = self._history.pop(request.session, array("i"))
        text = self._text.pop(request.session, b"")
        if kept < len(history):
            history = history[:kept]
            text = as_json(history)
        fresh = self._fresh(request, len(history))
        tokens = history + fresh
        if fresh:
            text = b",".join((text, as_json(fresh))) if text else as_json(fresh)
        return tokens, text

    def answered(self, request: Request, tokens: array[int], text: bytes, output: list[int] | None) -> None:
        """Remember the turn for the next one. `output` is None after a failure: a stand-in of the asked length takes its place."""
        if output is None or not self._generated:
            count = request.asked_output_tokens if output is None else len(output)
            output = draw(f"{self._seed}:answer:{request.id}", count).tolist()
        self._history[request.session] = tokens + array("i", output)
        self._text[request.session] = b",".join((text, as_json(output))) if output else text

    def forget(self, session: str) -> None:
        self._history.pop(session, None)
        self._text.pop(session, None)

    def _fresh(self, request: Request, start: int) -> array[int]:
        """Tokens of the prompt's positions from `start` to its end."""
        end, size = request.input_tokens, self._block_size.get(request.session)
        out = array("i")
        if size and request.hash_ids:
            for block in range(start // size, min(len(request.hash_ids), -(-end // size))):
                tokens = draw(f"{self._seed}:block:{request.hash_ids[block]}", size)
                out += tokens[max(start - block * size, 0) : end - block * size]
        missing = end - start - len(out)
        return out + draw(f"{self._seed}:{request.session}:{request.turn}", missing) if missing > 0 else out
