"""A traceback is one event, however many lines it has, and chained ones are one with the first."""

from __future__ import annotations

import re
from typing import Any

from apd_replay.logs.prefix import Piece

START = "Traceback (most recent call last):"
_EXCEPTION_LINE = re.compile(r"(?:[A-Za-z_][\w]*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Refused)\b(?::.*)?$", re.DOTALL)
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_DETAIL_LENGTH = 500


def is_start(message: str) -> bool:
    return message.endswith(START) or message.startswith(("Scheduler hit an exception", "Exception in thread "))


def is_exception_line(text: str) -> bool:
    """`ValueError: ...`, or one of the sentences that chain two tracebacks."""
    return text.startswith(_CHAIN) or _EXCEPTION_LINE.match(text) is not None


class Traceback:
    """The last traceback of a log. `row` is its event; its detail becomes the exception's own line once that is known."""

    def __init__(self, row: dict[str, Any], tags: str) -> None:
        self.row, self.tags = row, tags
        self.ended = False
        self._chained = False

    def add(self, text: str) -> None:
        """A line for which `is_exception_line` holds."""
        if text.startswith(_CHAIN):
            self._chained = True
        elif not self.ended or self._chained:
            self.row["detail"] = text[:_DETAIL_LENGTH]
            self.ended, self._chained = True, False

    def continues(self, piece: Piece, message: str) -> bool:
        """A bare `Traceback` line right after the head that announced it, or after a chaining sentence."""
        return not piece.stamped and message == START and (self._chained or not self.ended)
