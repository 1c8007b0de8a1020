"""Asking a D whether a follow-up turn may be appended there (endpoints of apd_replay.sglang_plugin; stock SGLang has none)."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields

from apd_replay.errors import RunError
from apd_replay.replay.client import Address, Client, Disconnected, Malformed
from apd_replay.replay.core import AdmissionAnswer, Request

ASK = "/admit_direct_append"
CLOSE = "/close_direct_session"

_FIELDS = {f.name for f in fields(AdmissionAnswer)}


async def ask(client: Client, to: Address, request: Request, output_reserve_tokens: int) -> AdmissionAnswer | None:
    """None: the D did not answer, or not with an admission. Raises RunError where the endpoint does not exist: no turn could ever be direct."""
    question = {
        "session": request.session, "rid": request.id, "input_tokens": request.input_tokens, "history_tokens": request.history_tokens,
        "appended_tokens": request.input_tokens - request.history_tokens, "output_tokens": request.asked_output_tokens,
        "output_reserve_tokens": output_reserve_tokens,
    }  # fmt: skip
    try:
        response = await client.post(to, ASK, [json.dumps(question).encode()])
    except (Disconnected, Malformed):
        return None
    if response.status in (404, 405):
        raise RunError(f"{to.url} has no {ASK}: resident sessions need this package's SGLang plugin in every D; set sglang.plugin: true "
                       "and install apd-replay where the servers run, or set resident: false")
    if response.status != 200:
        return None
    try:
        found = json.loads(response.body)
        return AdmissionAnswer(**{k: v for k, v in found.items() if k in _FIELDS})
    except (ValueError, TypeError, AttributeError):
        return None


async def close(client: Client, to: Address, session: str) -> None:
    """Tell a D that a session will not come back. A dead D keeps nothing: no error then."""
    with suppress(Disconnected, Malformed):
        await client.post(to, CLOSE, [json.dumps({"session": session}).encode()])
