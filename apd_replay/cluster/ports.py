"""Ports, asked from the kernel."""

from __future__ import annotations

import socket


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` different ports that nobody listens on. All are held until the last is known, so that none comes twice; another
    process may still take one before its server binds it, and that server then says so and ends."""
    held = []
    try:
        for _ in range(count):
            listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            held.append(listener)
            listener.bind((host, 0))
        return [listener.getsockname()[1] for listener in held]
    finally:
        for listener in held:
            listener.close()
