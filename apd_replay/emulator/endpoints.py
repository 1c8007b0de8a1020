"""SGLang's HTTP API, and the calls of this project's plugin, for one emulated worker."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from apd_replay.emulator import status
from apd_replay.emulator.answer import Answer
from apd_replay.emulator.http import Connection
from apd_replay.emulator.live import Asked, LiveCluster
from apd_replay.emulator.spec import Place, Spec
from apd_replay.replay.core import AdmissionAnswer

MOST_OUTPUT_TOKENS = 1_000_000
DEFAULT_OUTPUT_TOKENS = 128  # SGLang's
DIRECT = "direct"  # bootstrap_host of a turn that its D computes itself


class Refused(ValueError):
    """A request that a worker answers with 400."""


@dataclass(frozen=True, slots=True)
class _Question:
    """A /generate as it was asked."""

    rid: str
    prompt: array[int]
    output_tokens: int
    streamed: bool
    session: str | None  # as the client names it; None: it does not
    appended: bool  # the prompt holds only what comes after the session's history
    host: str | None
    port: int | None
    room: int | None

    @classmethod
    def of(cls, body: Any) -> _Question:
        """Raises Refused, which says what is missing."""
        if not isinstance(body, Mapping):
            raise Refused("expected a JSON object")
        ids = body.get("input_ids")
        if not isinstance(ids, list) or not ids:
            raise Refused("input_ids: expected a list of token ids (there is no tokenizer here, and one request holds one prompt)")
        try:
            prompt = array("i", ids)
        except (TypeError, OverflowError):
            raise Refused("input_ids: expected token ids") from None
        sampling = _within(body, "sampling_params", Mapping, {})
        tokens = _within(sampling, "max_new_tokens", int, DEFAULT_OUTPUT_TOKENS)
        if not 0 < tokens <= MOST_OUTPUT_TOKENS:
            raise Refused(f"max_new_tokens: expected 1 to {MOST_OUTPUT_TOKENS}")
        params = _within(body, "session_params", Mapping, {})
        opened = _within(params, "id", str, None)
        rid = _within(body, "rid", str, None) or uuid4().hex
        return cls(rid, prompt, tokens, bool(body.get("stream")), opened or _within(body, "routing_key", str, None), opened is not None,
                   _within(body, "bootstrap_host", str, None), _within(body, "bootstrap_port", int, None), _within(body, "bootstrap_room", int, None))  # fmt: skip


def _within(body: Mapping[str, Any], key: str, kind: Any, default: Any) -> Any:
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise Refused(f"{key}: expected {'an object' if kind is Mapping else 'a whole number' if kind is int else 'text'}")
    if kind is str and not value.isprintable():  # names stand in log lines
        raise Refused(f"{key}: expected printable text")
    return value


class Endpoints:
    """Routes of the worker at `place`."""

    def __init__(self, spec: Spec, place: Place, cluster: LiveCluster) -> None:
        self._spec, self._place, self._cluster = spec, place, cluster
        self._opened: set[str] = set()  # streaming sessions
        self._ports = {p.bootstrap_port: p.index for p in spec.places if p.role == "prefill"}
        show: dict[str, Callable[[], Any]] = {
            "/health": dict, "/health_generate": dict, "/ready": dict,
            "/server_info": lambda: status.server_info(spec, place, cluster), "/model_info": lambda: status.model_info(spec),
            "/v1/loads": lambda: {"timestamp": None, "dp_rank_count": 1, "loads": [status.loads(place, cluster)]},
            "/v1/models": lambda: {"object": "list", "data": [{"id": spec.experiment.cluster["model"], "object": "model"}]},
        }  # fmt: skip
        self._show = {**show, "/get_server_info": show["/server_info"], "/get_model_info": show["/model_info"]}
        self._take: dict[str, Callable[[Connection, Any], None]] = {"/generate": self._generate, "/open_session": self._open, "/close_session": self._close}
        if place.role == "decode" and spec.experiment["resident"]:
            self._take |= {"/admit_direct_append": self._admit, "/close_direct_session": self._close_direct}

    def handle(self, connection: Connection, method: str, path: str, body: bytes) -> None:
        if path == "/metrics":
            connection.reply(200, status.metrics(self._spec, self._place, self._cluster), "text/plain; version=0.0.4; charset=utf-8")
        elif path in self._show:
            connection.reply(200, self._show[path]())
        elif path not in self._take:
            connection.refuse(404, f"{path} is not served by this worker")
        elif method not in ("POST", "PUT"):
            connection.refuse(405, f"{path} takes a POST")
        else:
            try:
                self._take[path](connection, json.loads(body))
            except Refused as refusal:
                connection.refuse(400, str(refusal))
            except (ValueError, RecursionError):
                connection.refuse(400, "the body is not JSON")

    # generate ---------------------------------------------------------------------------------------------------------

    def _generate(self, connection: Connection, body: Any) -> None:
        asked, place, cluster = _Question.of(body), self._place, self._cluster
        if asked.appended and asked.session not in self._opened:
            raise Refused(f"Invalid request: session id {asked.session} does not exist")
        direct = asked.host == DIRECT and place.role == "decode" and self._spec.experiment["resident"] and asked.session is not None
        if place.role != "unified" and not direct and asked.room is None:
            raise Refused(f"Invalid request: Disaggregated request received without bootstrap room id. req.rid={asked.rid!r}")
        if place.role == "prefill":
            assert asked.room is not None
            cluster.join(asked.room, place.index, None, Answer(connection, asked.rid, place.name, len(asked.prompt), 1, streamed=asked.streamed))
            return
        prefill = self._ports.get(asked.port)
        if place.role == "decode" and not direct and prefill is None:
            raise Refused(f"bootstrap_port {asked.port} is no prefill worker's; there are: {', '.join(map(str, self._ports))}")
        request = self._request(connection, asked, "dp" if place.role == "unified" else "direct" if direct else "fallback", prefill)
        if place.role == "unified" or direct:
            cluster.serve(request)
        else:
            assert asked.room is not None and prefill is not None
            cluster.join(asked.room, prefill, request, None)

    def _request(self, connection: Connection, asked: _Question, path: str, prefill: int | None) -> Asked:
        histories = self._cluster.histories
        prompt = asked.prompt
        if asked.appended and asked.session is not None:
            prompt = histories.of(asked.session) + prompt
        found = histories.take(prompt, asked.session, asked.rid)
        answer = Answer(connection, asked.rid, self._place.name, len(prompt), asked.output_tokens, streamed=asked.streamed)
        through = path == "fallback"
        return Asked(id=asked.rid, session=found.session, turn=found.turn, input_tokens=len(prompt), asked_output_tokens=asked.output_tokens, shared_tokens=None,
                     hash_ids=None, gap_s=0.0, path=path, prefill=prefill if through else None, decode=self._place.index, room=asked.room if through else None,
                     history_tokens=found.history_tokens, named=asked.session is not None, prompt=prompt, answer=answer)  # fmt: skip

    # streaming sessions -----------------------------------------------------------------------------------------------

    def _open(self, connection: Connection, body: Any) -> None:
        if not isinstance(body, Mapping) or not isinstance(body.get("capacity_of_str_len"), int):
            raise Refused("capacity_of_str_len: expected a whole number")
        session = _within(body, "session_id", str, None) or uuid4().hex
        if session in self._opened:
            raise Refused(f"session id {session} already exist, cannot open.")
        self._opened.add(session)
        connection.reply(200, json.dumps(session))

    def _close(self, connection: Connection, body: Any) -> None:
        session = _within(body, "session_id", str, "") if isinstance(body, Mapping) else ""
        self._opened.discard(session)
        self._cluster.histories.forget(session)
        connection.reply(200, b"")

    # the plugin's calls -----------------------------------------------------------------------------------------------

    def _admit(self, connection: Connection, body: Any) -> None:
        if not isinstance(body, Mapping) or not _within(body, "session", str, ""):
            raise Refused("session: expected a name")
        appended, history = _within(body, "appended_tokens", int, -1), _within(body, "history_tokens", int, -1)
        if appended < 0:
            raise Refused("appended_tokens: expected a number of tokens")
        if history < 0:
            history = self._cluster.decode[self._place.index].idle.get(body["session"], 0)
        question = Asked(id=_within(body, "rid", str, ""), session=body["session"], turn=1, input_tokens=history + appended,
                         asked_output_tokens=_within(body, "output_tokens", int, 0), shared_tokens=None, hash_ids=None, gap_s=0.0,
                         decode=self._place.index, history_tokens=history)  # fmt: skip
        self._cluster.clock.catch_up()
        self._cluster.ask(question, lambda answer: connection.reply(200, _as_dict(answer)))

    def _close_direct(self, connection: Connection, body: Any) -> None:
        session = _within(body, "session", str, "") if isinstance(body, Mapping) else ""
        if not session:
            raise Refused("session: expected a name")
        self._cluster.clock.catch_up()
        self._cluster.close(session, self._place.index)
        connection.reply(200, {})


def _as_dict(answer: AdmissionAnswer) -> dict[str, Any]:
    return {**{name: getattr(answer, name) for name in AdmissionAnswer.__slots__}, "reason": "admitted" if answer.can_admit else answer.reason or "refused"}
