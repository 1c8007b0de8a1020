"""The HTTP side: POST /admit_direct_append and POST /close_direct_session, in the process that serves SGLang's HTTP API."""

from __future__ import annotations

import asyncio
import json
import mmap
from typing import Any

from apd_replay.sglang_plugin import admission, snapshot
from apd_replay.sglang_plugin.admission import Question
from apd_replay.sglang_plugin.events import Events
from apd_replay.sglang_plugin.settings import Settings

ADMIT = "/admit_direct_append"
CLOSE = "/close_direct_session"
NO_SNAPSHOT = {"can_admit": False, "reason": "no_snapshot", "evicted_session_count": 0, "recommended_pause_ms": 0.0}


def add_routes(server: Any, settings: Settings, events: Events, memory: mmap.mmap | None) -> None:
    """`server`: SGLang's module entrypoints.http_server. `memory`: the scheduler's snapshot. With `snapshot` it answers every admission; with
    `commit` it is a probe: its no is the answer, a yes goes on to the scheduler, which sets the tokens aside. None: the scheduler answers all."""
    from fastapi import Request
    from fastapi.responses import JSONResponse

    from apd_replay.sglang_plugin.messages import AdmissionCall, CloseCall

    # SGLang's communicator has one call of a type in flight and queues the others; 0.5.15 loses that queue's order when a call comes
    # just as another ends, and fails on an assertion. So the queueing is done here.
    turn = {"apd_admission": asyncio.Lock(), "apd_close": asyncio.Lock()}

    async def ask(name: str, call: Any) -> JSONResponse:
        manager = server.get_global_state().tokenizer_manager
        manager.auto_create_handle_loop()
        async with turn[name]:
            replies: list[Any] = await getattr(manager, f"{name}_communicator")(call)
        body = json.loads(replies[0].body)
        return JSONResponse(body, status_code=400 if "error" in body else 200)

    async def read(request: Request) -> Any:
        try:
            return json.loads(await request.body())
        except ValueError:
            raise ValueError("the body is not JSON") from None

    async def admit(request: Request) -> JSONResponse:
        try:
            body = await read(request)
            question = Question.of(body)
        except ValueError as error:
            return JSONResponse({"error": {"message": str(error)}}, status_code=400)
        if memory is not None:
            answer = from_snapshot(question, memory, settings)
            only = settings.admission == "snapshot"
            if only or (answer is not None and not answer["can_admit"]):
                answer = answer or NO_SNAPSHOT
                events.record("admission", session=question.session, **answer)
                return JSONResponse(answer)
        return await ask("apd_admission", AdmissionCall(body=json.dumps(body)))

    async def close(request: Request) -> JSONResponse:
        try:
            body = await read(request)
            if not isinstance(body, dict) or not isinstance(body.get("session"), str):
                raise ValueError("session: expected a name")
        except ValueError as error:
            return JSONResponse({"error": {"message": str(error)}}, status_code=400)
        return await ask("apd_close", CloseCall(body=json.dumps(body)))

    # FastAPI resolves annotations by the function's module, where `Request` is not imported: hand it the class itself
    for route in (admit, close):
        route.__annotations__ = {"request": Request}
    server.app.add_api_route(ADMIT, admit, methods=["POST"])
    server.app.add_api_route(CLOSE, close, methods=["POST"])


def from_snapshot(question: Question, memory: mmap.mmap, settings: Settings) -> dict[str, Any] | None:
    """Answer from what the scheduler last wrote; it is not asked, evicts nothing and keeps nothing for the turn. None: nothing can be read."""
    try:
        reading = snapshot.read(memory)
    except snapshot.Torn:
        return None
    if reading is None:
        return None
    tokens = reading.tokens_of(question.session)
    refusal = {None: "no_session", 0: "slot_lost", snapshot.UNDER_WAY: "busy"}.get(tokens, "")
    kept = None if refusal else tokens
    others = 0 if kept is None else sum(slot for slot in reading.slots.values() if slot > 0) - kept
    answer = admission.answer(question, reading.numbers, kept, refusal, 0, settings.pause_ms(), reading.drained_tokens_per_s, yielding_tokens=others)
    return {**answer, "snapshot_mono": reading.mono_s}
