"""Built-in traces: sessions drawn from the parameters in config/traces.yaml. The seed fixes every byte.

What is asked for exactly comes out exactly: distributions are laid out in equal steps of probability and dealt out at random,
not sampled. Only `Random.random` is used, the one stream that Python keeps the same over its versions.

A session's prompt grows from its first turn to its peak, and each prompt is the previous one + its answer + new tokens. So a
session with a higher peak has more turns, in proportion to what it grows by. Send times of follow-up turns count the gaps
alone, since an answer's own time is not the trace's to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from math import ceil, exp, floor, log
from random import Random
from statistics import NormalDist
from typing import Any, TypeVar

from apd_replay.errors import ConfigError
from apd_replay.trace.assembly import digest
from apd_replay.trace.model import Session, Trace, Turn, shared_with_previous

T = TypeVar("T")
TRIES = 100  # random picks of a turn before the first that fits is taken


def synthesize(name: str, parameters: dict[str, Any]) -> Trace:
    """The trace of `parameters` (config/schema/traces.yaml has their meaning)."""
    rng = Random(parameters["seed"])
    sessions, requests = parameters["sessions"], parameters["requests"]
    if requests < 2 * sessions:
        raise ConfigError("traces.yaml", f"{name}.requests", f"{requests} is too few for {sessions} sessions of at least two turns")
    firsts_ascending = _whole(_laid_out(_points(name, "first_prompt_tokens", parameters), sessions))
    # By rank: a longer first prompt belongs to a higher peak, so that every session has something to grow by.
    peaks, firsts = zip(*_shuffled(list(zip(_peaks(parameters["peak_tokens"], sessions), firsts_ascending, strict=True)), rng), strict=True)
    growth = [peak - first for peak, first in zip(peaks, firsts, strict=True)]
    if min(growth) < 2:
        raise ConfigError("traces.yaml", f"{name}.peak_tokens", f"a session's peak of {min(peaks)} tokens leaves no room above its first prompt")
    turns = _shares(requests - 2 * sessions, growth, least=2)
    outputs = _answers(name, _whole(_laid_out(_points(name, "output_tokens", parameters), requests)), turns, growth, rng)
    gaps = iter(_shuffled(_laid_out(_points(name, "gap_s", parameters), requests - sessions, digits=3), rng))
    made, width, first_block = [], len(str(sessions - 1)), 0
    for k in range(sessions):
        appended = _shares(growth[k] - sum(outputs[k][:-1]) - (turns[k] - 1), [-log(1.0 - rng.random()) for _ in outputs[k][:-1]], least=1)
        prompts = list(accumulate((o + a for o, a in zip(outputs[k][:-1], appended, strict=True)), initial=firsts[k]))
        waits = [next(gaps) for _ in prompts[1:]]
        made.append(_session(f"{name}-{k:0{width}d}", prompts, outputs[k], waits, parameters["block_tokens"], first_block))
        first_block += prompts[-1] // parameters["block_tokens"]
    return Trace(name, digest(made), tuple(made))


def _session(id_: str, prompts: list[int], outputs: list[int], waits: list[float], block: int, first_block: int) -> Session:
    """Blocks are the session's own and never change once they are full."""
    turns: list[Turn] = []
    for k, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        ids = tuple(range(first_block, first_block + prompt // block)) or None
        arrival, gap, kind = (round(turns[-1].arrival_s + waits[k - 1], 9), waits[k - 1], "think") if k else (0.0, None, None)
        turn = Turn(id_, k, arrival, gap, kind, prompt, output, None, ids, block if ids else None)
        shared = shared_with_previous(turns[-1], turn) if k else None
        turns.append(Turn(id_, k, arrival, gap, kind, prompt, output, shared, ids, block if ids else None))
    return Session(id_, tuple(turns))


Points = list[tuple[float, float]]


def _points(name: str, key: str, parameters: dict[str, Any]) -> Points:
    """Quantiles p0 to p100 as (probability, value), checked: both ends there, nothing falling."""
    given = parameters[key]
    try:
        points = sorted((float(label.removeprefix("p")) / 100.0, float(value)) for label, value in given.items())
    except ValueError:
        raise ConfigError("traces.yaml", f"{name}.{key}", f"quantiles are named p0 to p100, found {', '.join(given)}") from None
    if points[0][0] != 0.0 or points[-1][0] != 1.0:
        raise ConfigError("traces.yaml", f"{name}.{key}", "needs p0 and p100")
    if any(b[1] < a[1] for a, b in pairwise(points)):
        raise ConfigError("traces.yaml", f"{name}.{key}", "a higher quantile has a smaller value")
    return points


def _laid_out(points: Points, count: int, digits: int = 0) -> list[float]:
    """`count` ascending values, log-linear between the points. The values on both sides of a point's rank are that point, so
    that an interpolated quantile finds it exactly."""
    out, k = [], 0
    for i in range(count):
        q = i / (count - 1) if count > 1 else 0.5
        while q > points[k + 1][0]:
            k += 1
        (q0, v0), (q1, v1) = points[k], points[k + 1]
        out.append(round(exp(log(v0) + (log(v1) - log(v0)) * (q - q0) / (q1 - q0)), digits))
    for q, value in points:
        rank = q * (count - 1)
        out[floor(rank)] = out[ceil(rank)] = value
    return sorted(out)


def _whole(values: Sequence[float]) -> list[int]:
    return [round(v) for v in values]


def _peaks(peak: dict[str, Any], count: int) -> list[int]:
    normal = NormalDist(log(peak["median"]), peak["sigma"]) if peak["sigma"] else None
    middle = [(i + 0.5) / count for i in range(count)]
    drawn = [exp(normal.inv_cdf(q)) if normal else float(peak["median"]) for q in middle]
    return [round(min(max(v, peak["least"]), peak["most"])) for v in drawn]


def _shuffled(values: Sequence[T], rng: Random) -> list[T]:
    return [value for _, _, value in sorted((rng.random(), i, value) for i, value in enumerate(values))]


def _shares(total: int, weights: Sequence[float], least: int) -> list[int]:
    """`total` split in whole numbers in proportion to `weights` (largest remainders), `least` added to each."""
    whole = sum(weights)
    exact = [total * w / whole for w in weights]
    out = [floor(x) for x in exact]
    for i in sorted(range(len(out)), key=lambda i: (out[i] - exact[i], i))[: total - sum(out)]:
        out[i] += 1
    return [n + least for n in out]


def _answers(name: str, lengths: list[int], turns: list[int], growth: list[int], rng: Random) -> list[list[int]]:
    """Deal the answers out, longest first, each to a random free turn of a session that has room for it.

    All answers but a session's last one lie in its later prompts, with at least one new token each. A session keeps room for
    its other free turns, counted at the mean of the answers still to come, which only falls: so nobody is left without.
    """
    out: list[list[int]] = [[] for _ in turns]
    room = [g - (n - 1) for g, n in zip(growth, turns, strict=True)]
    free = [k for k, n in enumerate(turns) for _ in range(n)]  # the session of every free turn
    tokens_to_come = sum(lengths)
    for length in sorted(lengths, reverse=True):
        tokens_to_come -= length
        mean = tokens_to_come / (len(free) - 1) if len(free) > 1 else 0.0

        def fits(turn: int, length: int = length, mean: float = mean) -> bool:
            k = free[turn]
            return room[k] >= length + (turns[k] - len(out[k]) - 1) * mean

        tries = (int(rng.random() * len(free)) for _ in range(TRIES))
        turn = next(filter(fits, chain(tries, range(len(free)))), None)
        if turn is None:
            raise ConfigError("traces.yaml", f"{name}.output_tokens", f"no session has room for an answer of {length} tokens; peak_tokens are too small for these answers")
        k, free[turn] = free[turn], free[-1]
        free.pop()
        out[k].append(length)
        room[k] -= length
    return [_shuffled(dealt, rng) for dealt in out]
