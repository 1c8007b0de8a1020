"""Lines that are understood and hold nothing to keep: judged once, listed here with the judgement.

`KNOWN` is tried after the event rules. A line that is in neither is counted by shape in `unknown_lines`.
"""

from __future__ import annotations

import re

# what a message starts with, by why nothing is kept
KNOWN: dict[str, tuple[str, ...]] = {
    # the pool's size is taken from `max_total_num_tokens=`: these lines repeat it, or give an upper bound (0.5.23)
    "start-up": (
        "Load weight ", "KV Cache is allocated", "KV Cache VA upper bound", "KV Cache skipped", "Post-capture KV sizing", "Memory pool ",
        "Memory baseline taken", "Memory profiling", "Tree cache initialized", "Init torch distributed", "Init parallel", "Init Unified Radix",
        "init_threads_binding", "init_cpu_threads_env", "Engine startup timings", "Capture ", "Capturing batches", "Cuda graph is disabled",
        "Disable prefill CUDA graph", "Attention backend not specified", "Using default HuggingFace chat template", "No HuggingFace chat template",
        "No chat template found", "Detected chat template", "skip_tokenizer_init=", "Fail to set RLIMIT_NOFILE", "Cannot detect CUDA architecture",
        "Registered linear attn model", "Ignore import error when loading", "OpenAI Responses API", "Failed to load generation config",
        "Failed to get yes/no token IDs", "Using fallback token IDs", "Config file not found at", "Using MoE kernel config", "Compiled-kernel caches",
        "FlashInfer ", "flashinfer.", "tilelang not installed", "Allocating kv hierarchical", "attach_hybrid_pool_to_unified_cache",
        "Freezing GC", "INFO:     Started server process", "INFO:     Waiting for application", "INFO:     Application ", "INFO:     Uvicorn running",
        "Both --prefill-policy and --decode-policy", "Prompts loaded.", "SGLang Generating!", "Endpoint '",
    ),
    "P/D start-up": (
        "KV cache is forced as chunk cache for decode", "Radix cache is disabled for decode", "EXPERIMENTAL: Radix cache is enabled for decode",
        "Start of pd disaggregation warmup", "End of disaggregation warmup", "End of prefill disaggregation", "End of prefill warmup",
        "Disaggregation warmup", "disaggregation transfer backend", "No IB devices specified for Mooncake", "CommonKVBootstrapServer started",
        "NIXL KVManager initialized", "Starting failed-session probe loop",
    ),
    # how a server goes down is an event (crash, exception); these lines only follow from it
    "shutdown": (
        "SIGTERM received", "Gracefully exiting", "kill_process_tree called", "No live scheduler processes", "CUDA user-triggered coredump",
        "CUDA coredump pipe", "INFO:     Shutting down", "INFO:     Finished server process", "Killed",
        "INFO:     Waiting for connections to close", "INFO:     Waiting for background tasks to complete",
    ),
    "stack dump": ("Pyspy ", "Req(rid="),
    # a test mode retracts on purpose: no sign of a full pool
    "test retraction": ("Testing retraction.",),
    # once a process: cannot be counted; each of these requests has its own failure line
    "printed once": ("Some requests timed out when bootstrapping", "Some requests fail to receive KV Cache transfer done signal"),
    # the request's own failure line follows
    "repeated by a failure line": ("Could not fetch prefill parallel info", "Error fetching prefill server info", "Attempting to reconnect to ",
                                   "Could not fetch bootstrap info", "Prefill server with bootstrap_addr", "send_probe("),
    "deferred close": ("Deferring session close", "Deferred close ready", "release_session ", "register_session_ref ", "Open session response arrived after",
                       "Deferred KV release"),
    "refused request": (
        "Invalid request:", "[http_server] Error:", "Streaming session already has an active request",
        "WARNING:  Invalid HTTP request", "Received output for rid=", "Cache not flushed because", "Health check failed.",
    ),
    "other logger": ("[rank", "LMCache ", "[INFO] ", "WARNING: Logging before InitGoogleLogging", "# CMD ", "# ENV "),
    "request log": ("Receive: ", "Receive OpenAI: ", "Finish: "),
    "plugin": ("apd_replay plugin active", "apd_replay events: "),
    "emulator": ("The emulated workers are ready",),
    # the spike of a direct append; no released plugin prints them
    "spike plugin": ("APD extend ", "APD enqueue ", "APD refuse ", "APD abort queued", "APD plugin installed"),
}  # fmt: skip

# the same, where a message starts with what varies
PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("Python warning", re.compile(r"\S+\.py:\d+: \w*Warning: ")),
    ("other logger", re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:,\d+)? (?:- )?(?:[\w.]+ )?(?:- )?(?:DEBUG|INFO|WARNING|ERROR)\b")),
    ("stack dump", re.compile(r"Process \d+: |Python v\d|Thread \d+ \(")),
    ("shutdown", re.compile(r"(?:Waiting|Sleeping) [\d.]+ seconds ")),
    ("refused request", re.compile(r"Request \S+ exceeds the maximum number of tokens|Input length \(\d+ tokens\) exceeds the maximum|session id .+ (?:already exist|is None|does not exist)|session id is None")),
    ("optimistic prefill", re.compile(r"Req \S+ (?:optimistic prefill|exhausted optimistic)")),
)
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
    return next((why for why, pattern in PATTERNS if pattern.match(message)), None)
