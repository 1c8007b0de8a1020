"""Lines that are understood and hold nothing to keep: judged once, listed here with the judgement.

`KNOWN` is tried after the event rules. A line that is in neither is counted by shape in `unknown_lines`.
"""

from __future__ import annotations

import re

# what a message starts with, by why nothing is kept
KNOWN: dict[str, tuple[str, ...]] = {
    "start-up": (
        "Load weight ", "KV Cache is allocated", "Memory pool end", "Tree cache initialized",
    ),
}  # fmt: skip

ACCESS = re.compile(r'(?:INFO: +|[\d.:a-fA-F]+ \[[^\]]+\] )(?:\S+ - )?"(?P<method>[A-Z]+) (?P<path>\S*) HTTP/[\d.]+" (?P<status>\d{3})\b')
ROUTER = re.compile(r"(?P<date>\d{4}-\d\d-\d\d)[ T](?P<time>\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d{1,6})\d*)?Z? +(?:TRACE|DEBUG|INFO|WARN|ERROR) (?P<rest>.*)$", re.DOTALL)
GLOG = re.compile(r"[IWEF](?P<month>\d\d)(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d)\.(?P<fraction>\d{6}) +\d+ [\w./+-]+:\d+\] ?(?P<message>.*)$", re.DOTALL)
LISTENING = re.compile(r"Transfer Engine RPC using P2P handshake, listening on (\S+:\d+)$")
PROGRESS = re.compile(r"%\|.*\||\d+(?:it)? \[\d\d:\d\d(?::\d\d)?(?:<|, )|(?:it/s|s/it)\]")

_BY_START: dict[str, list[tuple[str, str]]] = {}
for _why, _heads in KNOWN.items():
    for _head in _heads:
        _BY_START.setdefault(_head[:4], []).append((_head, _why))


def find(message: str) -> str | None:
    """Why nothing is kept of the message; None where no rule knows it."""
    for head, why in _BY_START.get(message[:4], ()):
        if message.startswith(head):
            return why
    return None
