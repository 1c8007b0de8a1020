"""Which SGLang functions are hooked, and what their parameters must be called on each version. Imports no SGLang by itself.

A hook that does not apply is fatal here, where SGLang would only log it and serve on without: `apply` checks each one afterwards.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

TESTED = ("0.5.15.post1", "0.5.21")


class HookError(Exception):
    """A hook cannot be applied to this SGLang."""


@dataclass(frozen=True, slots=True)
class Hook:
    """`target` below sglang.srt; `kind`: before, after or around; `parameters`: the names that are known, one tuple a shape."""

    target: str
    kind: str
    parameters: tuple[tuple[str, ...], ...]

    @property
    def path(self) -> str:
        return f"sglang.srt.{self.target}"


_SCHEDULER = "managers.scheduler.Scheduler"
_PREALLOC = "disaggregation.decode.DecodePreallocQueue"
_BATCH = "managers.schedule_batch.ScheduleBatch"

HOOKS: dict[str, Hook] = {
    "built": Hook(f"{_SCHEDULER}.__init__", "after", (
        ("self", "server_args", "port_args", "gpu_id", "tp_rank", "moe_ep_rank", "pp_rank", "attn_cp_rank", "moe_dp_rank", "dp_rank"),
        ("self", "server_args", "port_args"),
    )),
    "dispatcher": Hook(f"{_SCHEDULER}.init_request_dispatcher", "after", (("self",),)),
    "received": Hook(f"{_SCHEDULER}.handle_generate_request", "before", (("self", "recv_req"), ("self", "recv_req", "mm_input_error"))),
    "queue": Hook(f"{_SCHEDULER}._add_request_to_queue", "around", (("self", "req", "is_retracted"),)),
    "next_batch": Hook(f"{_SCHEDULER}.get_next_disagg_decode_batch_to_run", "around", (("self",), ("self", "running_batch"))),
    "abort": Hook(f"{_SCHEDULER}.abort_request", "around", (("self", "recv_req"),)),
    "flush": Hook(f"{_SCHEDULER}.flush_cache", "before", (("self", "empty_cache"),)),
    "batch_done": Hook(f"{_SCHEDULER}.process_batch_result", "after", (("self", "batch", "result"),)),
    "load": Hook(f"{_SCHEDULER}.publish_load_snapshot", "after", (("self", "force"),)),
    "release": Hook("mem_cache.common.release_kv_cache", "around", (("req", "tree_cache", "is_insert"),)),
    "decode_memory": Hook(f"{_BATCH}.check_decode_mem", "before", (("self", "selected_indices"),)),
    "retract": Hook(f"{_BATCH}.retract_decode", "after", (("self", "server_args"), ("self",))),
    "preallocate": Hook(f"{_PREALLOC}.pop_preallocated", "around", (
        ("self", "rids_to_check"), ("self", "rids_to_check", "pp_good_rids", "pp_bad_rids"),
    )),
    "resume": Hook(f"{_PREALLOC}.resume_retracted_reqs", "around", (("self", "rids_to_check"),)),
    "budget": Hook(f"{_PREALLOC}._allocatable_token_budgets", "after", (
        ("self", "retractable_tokens", "count_retracted", "extra_reserved_reqs", "reserved_tokens", "hicache_reserved_tokens"),
    )),
    "serve": Hook("entrypoints.http_server._setup_and_run_http_server", "before", (
        ("server_args", "tokenizer_manager", "template_manager", "port_args", "scheduler_infos", "subprocess_watchdog", "execute_warmup_func", "launch_callback"),
    )),
}  # fmt: skip

# called by the hooks, never hooked: the version must have them with these parameters
CALLED: tuple[Hook, ...] = (
    Hook(f"{_SCHEDULER}.get_next_batch_to_run", "", (("self",), ("self", "running_batch", "last_batch"))),
    Hook(f"{_SCHEDULER}.get_new_prebuilt_batch", "", (("self",), ("self", "running_batch"))),
    Hook(f"{_BATCH}.new_tokens_required_next_decode", "", (("self", "selected_indices"),)),
    Hook(f"{_PREALLOC}._prealloc_required_tokens", "", (("self", "req"),)),
)


def check_version(version: str) -> None:
    """Raises HookError."""
    if version not in TESTED:
        raise HookError(f"SGLang {version} was never tried with this plugin; tried: {', '.join(TESTED)}. Install one of these, or run without sglang.plugin")


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def apply(functions: Mapping[str, Callable[..., Any]]) -> list[str]:
    """Hook every target, check that it is hooked, and return their paths. Raises HookError."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    if set(functions) != set(HOOKS):
        raise HookError(f"hooks without a function or a target: {', '.join(sorted(set(functions) ^ set(HOOKS)))}")
    originals = {name: _resolved(hook) for name, hook in HOOKS.items()}
    for called in CALLED:
        _resolved(called)
    for name, hook in HOOKS.items():
        HookRegistry.register(hook.path, functions[name], HookType(hook.kind))
    HookRegistry.apply_hooks()
    for name, hook in HOOKS.items():
        if not _wraps(pkgutil.resolve_name(hook.path), originals[name]):
            raise HookError(f"{hook.path} could not be hooked (another plugin may have taken it); SGLang's own log says why")
    return [hook.path for hook in HOOKS.values()]


def _resolved(hook: Hook) -> Callable[..., Any]:
    try:
        function: Callable[..., Any] = pkgutil.resolve_name(hook.path)
    except (ImportError, AttributeError) as error:
        raise HookError(f"{hook.path} is not there: {error}") from None
    found = parameters_of(function)
    if found not in hook.parameters:
        raise HookError(f"{hook.path} takes {', '.join(found)}; known: {' | '.join(', '.join(p) for p in hook.parameters)}")
    return function


def _wraps(found: Any, original: Any) -> bool:
    while (inner := getattr(found, "__wrapped__", None)) is not None:
        if inner is original:
            return True
        found = inner
    return False
