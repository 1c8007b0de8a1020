"""A request while the simulated cluster serves it."""

from __future__ import annotations

from enum import IntEnum

from apd_replay.replay.core import Request


class Stage(IntEnum):
    """Where a job is. The order is that of a turn through P and D; a direct append and a unified worker use the last four."""

    PREALLOC = 0  # on D: wants room; on P: bootstrapping
    TRANSFER = 1  # D has made room; P queues, computes or sends
    ARRIVED = 2  # the KV is complete on D
    WAITING = 3  # waits for its prompt to be computed by the worker that will decode it
    PREFILL = 4  # in a prefill batch there
    RUNNING = 5  # decoding
    RETRACTED = 6
    GONE = 7  # ended, well or not


class Job:
    """`held`: KV tokens that the decoding worker keeps for it. `prefix`: prompt tokens that need no computing, on whoever computes it."""

    __slots__ = ("cached", "chunk", "computed", "decode", "finish_step", "generated", "held", "input", "joined_step", "noise", "output", "p_held",
                 "p_stage", "prefill", "prefix", "request", "retractions", "rid", "room", "runs", "session", "shared_head", "slot_lost", "stage", "turn")  # fmt: skip

    def __init__(self, request: Request, noise: float) -> None:
        self.request = request
        self.rid, self.session, self.turn = request.id, request.session, request.turn
        self.input, self.output = request.input_tokens, request.asked_output_tokens
        self.noise = noise
        self.prefill, self.decode, self.room = request.prefill, request.decode, request.room
        self.stage = Stage.WAITING
        self.held = 0  # on the decoding worker
        self.p_held = 0  # on P
        self.runs = 1  # of neighbouring slots, into which its prompt's KV is sent
        self.prefix = 0
        self.computed = 0  # prompt tokens computed or cached so far
        self.chunk = 0  # tokens of it in the running prefill batch
        self.shared_head = 0  # leading prompt tokens kept by the prefix cache under blocks that other sessions share
        self.generated = 0  # answer tokens, up to date while not decoding
        self.joined_step = 0
        self.finish_step = 0
        self.cached = 0
        self.retractions = 0
        self.slot_lost: bool | None = None
