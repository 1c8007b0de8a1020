"""The table of event lines: what a message starts with, the kind of event it is, where it was seen, and what it holds.

To add a line: one row here, a line in tests/logs/log_lines.py, and, where it is a new kind, its name in schemas.EVENT_KINDS.
Named groups `session`, `room`, `peer`, `tokens` go to the columns of that name, other named groups to `rest`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ADDRESS = r"\S+:\d+"


@dataclass(frozen=True, slots=True)
class Rule:
    """`pattern` must match the whole message, or the line counts as cut. `role`: what such a line says about its writer."""

    head: str
    kind: str
    seen: str
    pattern: re.Pattern[str] | None = None
    role: str | None = None


def _rule(head: str, kind: str, seen: str, pattern: str | None = None, role: str | None = None) -> Rule:
    return Rule(head, kind, seen, re.compile(pattern, re.DOTALL) if pattern else None, role)


RULES: tuple[Rule, ...] = (
    # start-up
    _rule("max_total_num_tokens=", "pool_size", "0.4.0+", r"max_total_num_tokens=(?P<tokens>\d+)(?:, (?P<settings>.*))?"),
    _rule("The server is fired up", "ready", "0.4.0+"),
    # KV pool
    _rule("Session trim: ", "trim", "plugin, simulator", r"Session trim: evicted (?P<sessions>\d+) idle sessions?, (?P<tokens>\d+) tokens freed"),
    _rule("Decode out of memory happened.", "retract", "0.4.0 to 0.4.6",
          r".*? #retracted_reqs: (?P<requests>\d+)(?:, #aborted_retracted_reqs: (?P<aborted>\d+))?, #new_token_ratio: (?P<ratio>[\d.]+ -> [\d.]+)"),
    _rule("KV cache pool is full. Retract requests.", "retract", "0.4.9+",
          r".*? #retracted_reqs: (?P<requests>\d+)(?:, #aborted_retracted_reqs: (?P<aborted>\d+))?(?:, #new_tokens_gained: (?P<tokens>\d+))?"
          r"(?:, #mamba_num_gained: (?P<mamba_gained>\d+))?(?:, #new_token_ratio: (?P<ratio>[\d.]+ -> [\d.]+))?"),
    _rule("retract_decode: aborted ", "oom_abort", "0.5.8+", r"retract_decode: aborted (?:last )?request (?P<rid>\S+?):? (?P<why>.*)"),
    _rule("Cache flushed successfully", "cache_flush", "0.4.0+"),
    # sessions; `Session ip:port failed.` is a Mooncake session, not an agent's
    _rule("Session opened: ", "session_open", "0.5.11+", r"Session opened: (?P<session>.+) \(active=(?P<active>\d+)\)"),
    _rule("Session closed: ", "session_close", "0.5.11+", r"Session closed: (?P<session>.+) \(active=(?P<active>\d+)\)"),
    _rule("Session KV released: ", "session_release", "0.5.11+", r"Session KV released: (?P<session>.+) \((?P<tokens>\d+) tokens freed\)"),
    # transfers
    _rule("NIXL transport error for room ", "transfer_error", "0.5.14+", r"NIXL transport error for room (?P<room>\d{1,19}): (?P<why>.*)"),
    _rule("Dropped blacklisted session ", "peer_recovered", "0.5.23", rf"Dropped blacklisted session (?P<peer>{_ADDRESS}): (?P<why>.*)"),
    _rule("Lost connection with prefill instance", "heartbeat_lost", "0.4.9+",
          r"Lost connection with prefill instance \(bootstrap_addr: (?P<peer>[^)]*)\)(?:, (?P<requests>\d+) requests affected)?.*", "decode"),
    _rule("Losing connection with prefill instance", "heartbeat_lost", "0.4.9 to 0.5.10",
          r"Losing connection with prefill instance \(bootstrap_addr: (?P<peer>[^)]*)\)(?:, (?P<requests>\d+) requests affected)?.*", "decode"),
    _rule("Unexpected transfer worker error for room ", "exception", "0.5.14+", r"Unexpected transfer worker error for room (?P<room>\d{1,19}).*"),
    _rule("Transfer thread failed because of ", "exception", "0.4.9+", r"(?P<why>.*)", "prefill"),
    _rule("[http_server] Error: Request is disconnected", "abort", "0.5.14+", r".*?(?:obj\.rid='(?P<rid>[^']*)'.*)?"),
    # health
    _rule("SIGQUIT received", "crash", "0.5.3+"),
    _rule("Received sigquit from a child", "crash", "0.4.0 to 0.5.2"),
    _rule("Subprocess ", "crash", "0.5.6+", r"Subprocess (?P<process>.+) \(pid=(?P<pid>\d+)\) crashed(?P<why>.*)"),
    _rule("Watchdog timeout (", "watchdog", "0.4.0 to 0.5.6", r"Watchdog timeout \((?P<setting>[^)]*)\).*"),
)  # fmt: skip

# messages that do not start with the telling word
ANYWHERE: tuple[Rule, ...] = (
    _rule(" watchdog timeout (", "watchdog", "0.5.10+", r"(?P<name>.+) watchdog timeout \((?P<setting>[^)]*)\).*"),
    _rule("memory leak detected!", "pool_leak", "0.4.6+", r"(?:\w+: )?(?P<pool>\w[\w ]*) memory leak detected!\s*(?P<figures>.*)"),
    _rule("KV cache pool leak", "pool_leak", "0.4.0 to 0.4.3"),
    _rule(" recovered via probe", "peer_recovered", "0.5.14+", rf"Session (?P<peer>{_ADDRESS}) recovered via probe.*", "prefill"),
    _rule(" timed out, closing.", "session_timeout", "0.5.10+", r"Session (?P<session>.+) timed out, closing\."),
    _rule(" failed.", "link_latched", "0.4.9+", rf"Session (?P<peer>{_ADDRESS}) failed\.", "prefill"),
)

GLOG: tuple[Rule, ...] = (
    _rule("Sync batch data transfer timeout after ", "mooncake_timeout", "Mooncake", r".*timeout after (?P<nanoseconds>\d+)\s*ns.*"),
    _rule("Sync data transfer timeout", "mooncake_timeout", "Mooncake"),
    _rule("Batch transfer timeout", "mooncake_timeout", "Mooncake"),
)

_BY_START: dict[str, tuple[Rule, ...]] = {}
for _r in RULES:
    _BY_START[_r.head[:6]] = (*_BY_START.get(_r.head[:6], ()), _r)


def find(message: str) -> Rule | None:
    """The rule whose head the message has."""
    for rule in _BY_START.get(message[:6], ()):
        if message.startswith(rule.head):
            return rule
    for rule in ANYWHERE:
        if rule.head in message and (rule.pattern is None or rule.pattern.fullmatch(message)):
            return rule
    return None
