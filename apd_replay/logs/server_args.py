"""The `server_args=` line: `ServerArgs(field=value, ...)` up to 0.5.18, a dict's repr from 0.5.23 on. Read, never evaluated."""

from __future__ import annotations

import re

HEAD = "server_args="
_SPECIAL = re.compile(r"""[\\'"()\[\]{},]""")
_OPEN, _CLOSE = "([{", ")]}"
ROLES = {"prefill": "prefill", "decode": "decode", "null": "unified", "None": "unified"}


def read(message: str) -> dict[str, str] | None:
    """Argument -> its text, quotes off. None: the line is cut."""
    body = message[len(HEAD) :].strip()
    if body.startswith("ServerArgs(") and body.endswith(")"):
        separator, inner = "=", body[len("ServerArgs(") : -1]
    elif body.startswith("{") and body.endswith("}"):
        separator, inner = ":", body[1:-1]
    else:
        return None
    out = {}
    for item in split(inner):
        key, found, value = item.partition(separator)
        if not found:
            return None
        out[_bare(key)] = _bare(value)
    return out


def role(arguments: dict[str, str]) -> str:
    """A server without `disaggregation_mode` (0.4.0 to 0.4.5) is a unified one."""
    return ROLES.get(arguments.get("disaggregation_mode", "null"), "unified")


def split(text: str) -> list[str]:
    """At commas outside brackets and quotes."""
    out, start, depth, quote, skipped = [], 0, 0, "", -1
    for match in _SPECIAL.finditer(text):
        at, char = match.start(), match[0]
        if at == skipped:
            continue
        if quote:
            if char == "\\":
                skipped = at + 1
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
        elif char == "," and depth <= 0:
            out.append(text[start:at])
            start = at + 1
    return [item for item in [*out, text[start:]] if item.strip()]


def _bare(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
