"""The entry point that SGLang calls in each of its processes, and the hooks as they meet the rest of the plugin.

SGLang logs what a plugin raises and serves on without it. A worker whose sessions silently stay nowhere would spoil a run, so whatever goes
wrong here ends the process with one line.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from apd_replay.errors import PLUGIN_SAYS, ApdError
from apd_replay.sglang_plugin import direct, endpoints, hooks, links, memory, settings, snapshot
from apd_replay.sglang_plugin.admission import Question
from apd_replay.sglang_plugin.events import Events
from apd_replay.sglang_plugin.resident import Resident, log
from apd_replay.sglang_plugin.settings import Settings


def install() -> None:
    """Hook this process, or leave it alone where the environment does not ask for the plugin. Exits where that cannot be done whole."""
    try:
        told = settings.read(os.environ)
        if told is None:
            return
        import sglang

        hooks.check_version(sglang.__version__)
        from apd_replay.sglang_plugin import messages

        if told.looks_at_snapshot and snapshot.VARIABLE not in os.environ:
            os.environ[snapshot.VARIABLE] = snapshot.create()  # the first process of the server; its children inherit the place
        process = Process(told, Events(os.environ.get(settings.EVENTS)))
        messages.install()
        applied = hooks.apply(process.functions())
    except (ApdError, hooks.HookError, ImportError, AttributeError, OSError) as error:
        refuse(str(error))
    process.events.record("plugin_active", sglang=sglang.__version__, settings={n: getattr(told, n) for n in told.__dataclass_fields__}, hooks=applied)
    log.info("apd_replay plugin active: SGLang %s, %d hooks, admission %s, eviction %s", sglang.__version__, len(applied), told.admission, told.eviction)


def refuse(why: str) -> NoReturn:
    """End the process, and with it the server: an exception would only be logged, and SystemExit would wait for the threads of the KV transfer,
    for ever on 0.5.15."""
    print(f"{PLUGIN_SAYS}{why}", file=sys.stderr, flush=True)
    os._exit(1)


class Process:
    """One process of a server. `resident` stands in the scheduler of a decode worker only."""

    def __init__(self, told: Settings, events: Events) -> None:
        self.settings, self.events = told, events
        self.resident: Resident | None = None

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The hooks by their names in hooks.HOOKS. On workers without sessions each stands aside."""
        around: dict[str, Callable[..., Any]] = {"queue": direct.take_in, "next_batch": direct.next_batch, "abort": direct.abort, "release": memory.release,
                  "preallocate": memory.preallocate, "resume": memory.resume}  # fmt: skip
        return {
            **{name: partial(self._around, function) for name, function in around.items()},
            "built": self._built, "dispatcher": self._dispatcher, "received": self._received, "flush": self._flush, "load": self._load,
            "batch_done": self._batch_done, "decode_memory": self._decode_memory, "retract": self._retract, "budget": self._budget, "serve": self._serve,
        }  # fmt: skip

    def _around(self, function: Callable[..., Any], original: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if self.resident is None:
            return original(*args, **named)
        return function(self.resident, original, *args, **named)

    # in the scheduler's process ---------------------------------------------------------------------------------------

    def _built(self, result: None, scheduler: Any, *args: Any, **named: Any) -> None:
        role = scheduler.disaggregation_mode.value
        watched: list[str] = []
        if role == "prefill":
            watched = links.watch(scheduler.disagg_prefill_bootstrap_queue.kv_manager, role, self.events)
        elif role == "decode":
            watched = links.watch(scheduler.disagg_decode_prealloc_queue.kv_manager, role, self.events)
            self._host_sessions(scheduler)
        self.events.record("scheduler_ready", role=role, total_tokens=scheduler.max_total_num_tokens, watched=watched)

    def _host_sessions(self, scheduler: Any) -> None:
        told = scheduler.server_args
        if told.tp_size * told.dp_size * told.pp_size != 1:
            refuse("resident sessions need one GPU a decode worker (tp, dp and pp of 1)")
        if not told.disaggregation_decode_enable_radix_cache:
            refuse("resident sessions need --disaggregation-decode-enable-radix-cache on decode workers")
        memory = self._snapshot()
        self.resident = Resident(scheduler, self.settings, self.events, snapshot.Writer(memory) if memory is not None else None)
        self.resident.publish()

    def _dispatcher(self, result: None, scheduler: Any) -> None:
        from sglang.utils import TypeBasedDispatcher

        from apd_replay.sglang_plugin.messages import AdmissionCall, AdmissionReply, CloseCall, CloseReply

        def admit(resident: Resident, body: dict[str, Any]) -> dict[str, Any]:
            return resident.admit(Question.of(body))

        def close(resident: Resident, body: dict[str, Any]) -> dict[str, Any]:
            return resident.close(body["session"])

        scheduler._request_dispatcher += TypeBasedDispatcher([
            (AdmissionCall, partial(self._call, admit, AdmissionReply)), (CloseCall, partial(self._call, close, CloseReply)),
        ])  # fmt: skip

    def _call(self, function: Callable[[Resident, dict[str, Any]], dict[str, Any]], reply: Callable[..., Any], call: Any) -> Any:
        if self.resident is None:
            body: dict[str, Any] = {"error": {"message": "this is no decode worker: it keeps no sessions"}}
        else:
            body = function(self.resident, json.loads(call.body))
        return reply(rid=call.rid, http_worker_ipc=call.http_worker_ipc, body=json.dumps(body))

    def _received(self, scheduler: Any, recv_req: Any, **named: Any) -> None:
        """A direct turn has no room to meet a P in; SGLang refuses requests without one."""
        if recv_req.bootstrap_host == direct.MARK and recv_req.bootstrap_room is None:
            recv_req.bootstrap_room = 0

    def _flush(self, scheduler: Any, *args: Any, **named: Any) -> None:
        if self.resident is not None and scheduler.is_fully_idle():
            self.resident.drop_all()

    def _load(self, result: Any, scheduler: Any, *args: Any, **named: Any) -> None:
        if self.resident is not None:
            self.resident.publish()

    def _batch_done(self, result: None, scheduler: Any, batch: Any, *args: Any) -> None:
        mode = batch.forward_mode
        self.events.record("batch", mode=mode.name.lower(), requests=len(batch.reqs), new_tokens=batch.extend_num_tokens if mode.is_extend() else len(batch.reqs))

    def _decode_memory(self, batch: Any, selected_indices: Any = None) -> None:
        if self.resident is not None:
            memory.before_decode_step(self.resident, batch, selected_indices)

    def _retract(self, result: Any, *args: Any) -> None:
        if self.resident is not None:
            memory.retracted(self.resident, result)

    def _budget(self, result: int, *args: Any, **named: Any) -> int | None:
        return None if self.resident is None else result - self.resident.sessions.reserved_tokens()

    # in the HTTP process ----------------------------------------------------------------------------------------------

    def _serve(self, server_args: Any, *args: Any, **named: Any) -> None:
        from sglang.srt.entrypoints import http_server

        decode = server_args.disaggregation_mode == "decode"
        if decode and server_args.tokenizer_worker_num != 1:
            refuse("resident sessions need --tokenizer-worker-num 1")
        endpoints.add_routes(http_server, self.settings, self.events, self._snapshot() if decode else None)

    def _snapshot(self) -> mmap.mmap | None:
        where = os.environ.get(snapshot.VARIABLE)
        return snapshot.open_memory(where) if where and self.settings.looks_at_snapshot else None
