"""The admission call: can this decode worker take a turn as an append to what it keeps of the session? Arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apd_replay.replay.hints import Pressure
from apd_replay.sglang_plugin.settings import Hint


@dataclass(frozen=True, slots=True)
class Question:
    """`history_tokens`: how much of the prompt the session has already seen (None: all of what is kept); all counts in tokens."""

    session: str
    appended_tokens: int
    output_reserve_tokens: int
    history_tokens: int | None = None

    @classmethod
    def of(cls, body: Any) -> Question:
        """From the call's JSON body. Raises ValueError that says what is missing; further keys are ignored."""
        if not isinstance(body, Mapping):
            raise ValueError("expected a JSON object")
        session = body.get("session")
        if not isinstance(session, str) or not session:
            raise ValueError("session: expected a name")
        numbers = {}
        for key, default in (("appended_tokens", None), ("output_reserve_tokens", 0), ("history_tokens", -1)):
            value = body.get(key, default)
            if isinstance(value, bool) or not isinstance(value, int) or value < (-1 if key == "history_tokens" else 0):
                raise ValueError(f"{key}: expected a number of tokens")
            numbers[key] = value
        history = numbers.pop("history_tokens")
        return cls(session, history_tokens=None if history < 0 else history, **numbers)

    def need(self, resident_tokens: int) -> int:
        """Tokens the pool must still find: what is appended, what of the history is not kept, and the reserve for the answer."""
        missing = max(0, self.history_tokens - resident_tokens) if self.history_tokens is not None else 0
        return self.appended_tokens + missing + self.output_reserve_tokens


@dataclass(frozen=True, slots=True)
class Numbers:
    """The worker at one moment. `available_tokens`: free and evictable without hurting a session, less what is reserved."""

    total_tokens: int
    available_tokens: int
    held_tokens: int
    running: int
    waiting: int
    prealloc_queue: int
    transfer_queue: int
    retracted_queue: int


def answer(question: Question, numbers: Numbers, resident_tokens: int | None, refusal: str, evicted_sessions: int, hint: Hint,
           drained_tokens_per_s: float = 0.0, yielding_tokens: int = 0) -> dict[str, Any]:
    """The call's answer. `refusal`: why the session itself rules a direct turn out, empty where it does not. `drained_tokens_per_s`: at what
    rate sessions lately left the worker. `yielding_tokens`: in slots that will make way once the turn is there."""
    need = question.need(resident_tokens or 0)
    short = need - numbers.available_tokens - yielding_tokens
    fits = short <= 0
    used = numbers.total_tokens - numbers.available_tokens
    after = (used + need) / numbers.total_tokens
    return {
        "can_admit": not refusal and fits,
        "reason": refusal or ("admitted" if fits else "no_space"),
        "available_tokens": numbers.available_tokens,
        "needed_tokens": need,
        "resident_tokens": resident_tokens,
        "held_tokens": numbers.held_tokens,
        "token_usage": used / numbers.total_tokens,
        "token_usage_after": after,
        "queue_depth": numbers.transfer_queue,
        "prealloc_queue": numbers.prealloc_queue,
        "retracted_queue": numbers.retracted_queue,
        "running": numbers.running,
        "waiting": numbers.waiting,
        "evicted_session_count": evicted_sessions,
        "recommended_pause_ms": hint(Pressure(numbers.transfer_queue, numbers.retracted_queue, after, short, drained_tokens_per_s)),
    }
