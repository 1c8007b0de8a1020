"""What can go wrong, and how it is said: one line on stderr, exit status 1.

    ApdError                 anything a user can mend; its text is the one line they see
      InputError             a trace, a log or a run directory that cannot be read: file, line, column, what was expected
      ConfigError            a configuration key: file, key, what is allowed
      RunError               a replay that could not be carried out, or whose books do not balance
"""

from __future__ import annotations

import unicodedata
from pathlib import Path

PLUGIN_SAYS = "apd_replay plugin: "  # a server's line on why our plugin ended it; what SGLang says after it is of no help


def printable(text: str) -> str:
    """`text` with every control, format and line-breaking character as a backslash escape: what others wrote must not drive a terminal."""
    return "".join(c if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


class ApdError(Exception):
    """Something a user can mend. `str(error)` is the whole message, one line."""


class InputError(ApdError):
    """A file whose content cannot be used. `line` and `column` count from 1; `remedy` says what to do."""

    def __init__(self, file: str | Path, problem: str, *, line: int | None = None, column: str | int | None = None, remedy: str = "") -> None:
        self.file, self.problem, self.line, self.column, self.remedy = str(file), problem, line, column, remedy
        place = self.file
        if line is not None:
            place += f":{line}"
        if column is not None:
            place += f": column {column}"
        super().__init__(f"{place}: {problem}" + (f"; {remedy}" if remedy else ""))


class ConfigError(ApdError):
    """A configuration key that is unknown, missing or out of range. `key` is dotted: `experiments.E0.cluster`."""

    def __init__(self, file: str | Path, key: str, problem: str) -> None:
        self.file, self.key, self.problem = str(file), key, problem
        super().__init__(f"{file}: {key}: {problem}")


class RunError(ApdError):
    """A replay that could not be carried out, or a run whose books do not balance."""
