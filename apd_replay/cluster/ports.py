"""Ports, asked from the kernel."""

from __future__ import annotations

import socket

MOST = 55535  # SGLang 0.5.15 refuses a port to which 10000 cannot be added, for a gRPC server that is off


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` different ports up to MOST that nobody listens on. All are held until the last is known, so that none comes twice; another
    process may still take one before its server binds it, and that server then says so and ends."""
    held: list[socket.socket] = []
    found: list[int] = []
    try:
        while len(found) < count:
            listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            held.append(listener)
            listener.bind((host, 0))
            if (port := listener.getsockname()[1]) <= MOST:
                found.append(port)
        return found
    finally:
        for listener in held:
            listener.close()
