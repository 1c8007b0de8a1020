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
    """`generated`: follow-up prompts carry the tokens that were really generated; otherwise stand-ins, as after a failed turn.

    A prompt is kept as JSON, without brackets: as it will be sent, and in no second form, since many sessions are open at once.
    """

    def __init__(self, trace: Trace, seed: int, *, generated: bool) -> None:
        self._seed, self._generated = seed, generated
        self._block_size = {s.id: s.turns[0].block_size for s in trace.sessions if s.turns and s.turns[0].block_size}
        self._history: dict[str, bytes] = {}  # previous prompt + its answer

    def build(self, request: Request) -> bytes:
        """The prompt of a turn that is due next in its session."""
        history = self._history.pop(request.session, b"")
        kept = min(request.history_tokens, request.input_tokens)
        length = history.count(b",") + 1 if history else 0
        if kept < length:
            history, length = b",".join(history.split(b",", kept)[:kept]), kept
        return _joined(history, as_json(self._fresh(request, length)))

    def answered(self, request: Request, prompt: bytes, output: list[int] | None) -> None:
        """Remember the turn for the next one. `output` is None after a failure: a stand-in of the asked length takes its place."""
        if output is None or not self._generated:
            count = request.asked_output_tokens if output is None else len(output)
            output = draw(f"{self._seed}:answer:{request.id}", count).tolist()
        self._history[request.session] = _joined(prompt, as_json(output))

    def forget(self, session: str) -> None:
        self._history.pop(session, None)

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


def _joined(first: bytes, second: bytes) -> bytes:
    return b",".join((first, second)) if first and second else first or second
