"""A hardware file's coefficients as times. config/hardware/*.yaml say where each was measured; schema/hardware.yaml has the formulas."""

from __future__ import annotations

from typing import Any


class Cost:
    """Seconds that one worker takes. Lengths in tokens."""

    __slots__ = ("admission_s", "append_s", "attention_s", "bytes_per_s", "bytes_per_token", "chunk_s", "chunk_tokens", "context_s", "handshake_s",
                 "latency_s", "max_running", "prefix_s", "rpc_s", "run_s", "step_s", "token_s")  # fmt: skip

    def __init__(self, hardware: dict[str, Any], transfer_backend: str) -> None:
        decode, prefill, transfer = hardware["decode"], hardware["prefill"], hardware["transfer"][transfer_backend]
        self.max_running: int = hardware["max_running_requests"]
        untouched = 1.0 - decode["expert_share"]
        self.step_s: list[float] = [decode["step_s"] + decode["experts_s"] * (1.0 - untouched**n) for n in range(self.max_running + 1)]
        self.context_s: float = decode["context_s"]
        self.chunk_s: float = prefill["chunk_s"]
        self.token_s: float = prefill["token_s"]
        self.attention_s: float = prefill["attention_s"]
        self.prefix_s: float = prefill["prefix_s"]
        self.chunk_tokens: int = hardware["chunk_tokens"]
        self.latency_s: float = transfer["latency_s"]
        self.bytes_per_s: float = transfer["bytes_per_s"]
        self.run_s: float = transfer.get("run_s", 0.0)
        self.bytes_per_token: int = hardware["kv_bytes_per_token"]
        self.handshake_s: float = hardware["handshake_s"]
        self.rpc_s: float = hardware["rpc_s"]
        self.admission_s: float = hardware["admission_s"]
        self.append_s: float = hardware.get("append_s", 0.0)

    def prompt_s(self, new: int, prefix: int) -> float:
        """What `new` prompt tokens behind `prefix` cached ones add to a prefill batch; the batch itself adds `chunk_s`."""
        return new * (self.token_s + self.attention_s * (prefix + 0.5 * new)) + self.prefix_s * prefix

    def transfer_s(self, tokens: int, runs: float) -> float:
        """`runs`: of neighbouring slots on the D, beyond the first."""
        return self.latency_s + tokens * self.bytes_per_token / self.bytes_per_s + self.run_s * runs
