"""Which addresses does a process group listen on? Read from /proc, so that no tool has to be installed."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path


def listening(group: int) -> list[str]:
    """`address:port` of every TCP socket on which a process of the group listens; an IPv4 address in IPv6 form as IPv4."""
    sockets = {inode: at for table in ("tcp", "tcp6") for inode, at in _listeners(Path("/proc/net") / table)}
    found = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError):
            if os.getpgid(int(process.name)) != group:
                continue
            for handle in (process / "fd").iterdir():
                with suppress(OSError):
                    target = os.readlink(handle)
                    if target.startswith("socket:[") and target[8:-1] in sockets:
                        found.add(sockets[target[8:-1]])
    return sorted(found)


def _listeners(table: Path) -> list[tuple[str, str]]:
    out = []
    for line in table.read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A":
            address, port = fields[1].split(":")
            out.append((fields[9], f"{_address(address)}:{int(port, 16)}"))
    return out


def _address(text: str) -> str:
    """/proc prints each 32-bit word of an address in the machine's byte order."""
    raw = b"".join(bytes.fromhex(text[k : k + 8])[::-1] for k in range(0, len(text), 8))
    if len(raw) == 4:
        return socket.inet_ntop(socket.AF_INET, raw)
    if raw[:12] == bytes(10) + b"\xff\xff":
        return socket.inet_ntop(socket.AF_INET, raw[12:])
    return socket.inet_ntop(socket.AF_INET6, raw)
