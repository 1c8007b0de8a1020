"""SGLang's sentences become error kinds. The sentences are shapes of SGLANG.md 1.5 and 1.7, with made-up numbers."""

from __future__ import annotations

import json

import pytest

from apd_replay import schemas
from apd_replay.replay.failures import Failure, kind_of, of_pair, said_in

SAID = [
    ("Prefill transfer failed for request rank=0 req.rid='a' req.bootstrap_room=5 with exception KVTransferError(bootstrap_room=5): Failed to send kv chunk of 5 to 127.0.0.1:7", 500, "kv_transfer"),
    ("KVTransferError(bootstrap_room=5): Decode instance could be dead, remote mooncake session 127.0.0.1:9 is not alive", 500, "peer_dead"),
    ("KVTransferError(bootstrap_room=5): Request 5 timed out after 300.0s in KVPoll.Bootstrapping", 500, "bootstrap_timeout"),
    ("KVTransferError(bootstrap_room=5): Request 5 timed out after 300.0s in KVPoll.WaitingForInput", 500, "waiting_timeout"),
    ("KVTransferError(bootstrap_room=5): Failed to get kvcache from prefill instance, it might be dead", 500, "kv_transfer"),
    ("KVTransferError(bootstrap_room=5): Lost connection with prefill instance (bootstrap_addr: 127.0.0.1:1)", 500, "kv_transfer"),
    ("KVTransferError(bootstrap_room=5): Aborted by AbortReq.", 500, "aborted"),
    ("Could not fetch prefill parallel info from 127.0.0.1:1 after 15 attempts", 500, "bootstrap_timeout"),
    ("Out of memory even after retracting all other requests in the decode batch. Aborting the last request.", 500, "out_of_memory"),
    ("Retracted under decode memory pressure without a KV backup. Retry later.", 503, "out_of_memory"),
    ("Request a exceeds the maximum number of tokens: 9 > 8", 400, "http_4xx"),
    ("The request queue is full.", 503, "http_5xx"),
    ("Abort in waiting queue", None, "aborted"),
]


@pytest.mark.parametrize(("message", "status", "kind"), SAID)
def test_kind(message: str, status: int | None, kind: str) -> None:
    assert kind_of(message, status) == kind
    assert kind in schemas.ERROR_KINDS


@pytest.mark.parametrize("body", [{"error": {"message": "no", "code": 1}}, {"message": "no"}, {"detail": "no"}, {"error": "no"}])
def test_the_message_is_found_in_every_shape_of_error(body: dict[str, object]) -> None:
    assert said_in(json.dumps(body).encode()) == "no"


def test_what_is_no_json_is_taken_as_it_is() -> None:
    assert said_in(b" Bad Gateway \xff") == "Bad Gateway �"
    assert said_in(b'{"odd": 1}') == '{"odd": 1}'


def test_two_sides_make_one_failure() -> None:
    decode, prefill = Failure("kv_transfer", "D", 2.0), Failure("peer_dead", "P", 3.0)
    assert of_pair(decode, prefill) == Failure("peer_dead", "P", 2.0)
    assert of_pair(decode, None) == decode
    assert of_pair(None, prefill) == prefill
    gone = Failure("connection", "P gone", 3.0)
    assert of_pair(decode, gone) == decode, "the first to fail is believed where P knows no cause"
