"""Rows become the coefficients of config/schema/hardware.yaml, each group with what it was fitted on and by how much it misses.

All fits minimise relative errors, so that a millisecond counts as much as a second of the same share. A prompt of several chunks is
charged as the simulator charges it: one batch a chunk, each looking back at the chunks before it.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Any

from apd_replay.cluster.calibrate import least_squares
from apd_replay.cluster.calibrate.calls import COUPLED, SNAPSHOT
from apd_replay.cluster.calibrate.rows import Row
from apd_replay.errors import RunError
from apd_replay.replay.admission import ASK

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
PREFILL = ("chunk_s", "token_s", "attention_s", "prefix_s")
APPENDED = 1.5  # an append that takes so many times its prefill is bound by something else
BACKENDS = ("mooncake", "mooncake_tcp", "nixl")


@dataclass(frozen=True)
class Fitted:
    """`values`: keys of one group of the schema. `points`: how many measurements; `low`/`high`: extremes of predicted / measured - 1."""

    values: dict[str, float]
    points: int
    low: float = 0.0
    high: float = 0.0
    note: str = ""


@dataclass
class Fit:
    """Every group that could be fitted; `missing` says which could not, and why."""

    server: Row
    machine: Row
    groups: dict[str, Fitted] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def fit(rows: Sequence[Row], model: str | None = None) -> Fit:
    """`model`: the folder's name of the model wanted, needed where the rows are of several. KV transfers count whatever model they carried.

    Raises RunError where the rows do not say which model they are of.
    """
    servers = {PurePath(r["model"]).name: r for r in sorted(of(rows, "server"), key=lambda r: r["role"] == "null")}
    if not servers:
        raise RunError("no row of kind `server` among the measurements: nothing says which model they are of")
    if model is None and len(servers) > 1:
        raise RunError(f"measurements of several models: {', '.join(servers)}; name one with --model")
    chosen = model or next(iter(servers))
    if chosen not in servers:
        raise RunError(f"no measurements of a model {chosen!r}; there are: {', '.join(servers)}")
    out = Fit(servers[chosen], (of(rows, "machine") or [{}])[-1])
    own = [r for r in rows if r.get("model") == out.server["model"]]
    attempts: dict[str, Callable[[], Fitted]] = {
        "prefill": lambda: prefill(of(own, "prefill"), int(out.server["chunk_tokens"])),
        "decode": lambda: decode(of(own, "decode"), expert_share(out.server)),
        # A run of slots costs a piece in each layer: only the model's own count.
        **{f"transfer.{b}": partial(transfer, *([r for r in of(some, kind) if r["backend"] == b] for some, kind in ((rows, "transfer"), (own, "scattered")))) for b in BACKENDS},
        "noise_sigma": lambda: noise(of(own, "prefill")),
        # The plugin's admission is asked of whatever D has the plugin: its price is the scheduler's, not the model's.
        "rpc_s": lambda: rpc(own, rows),
        "admission_s": lambda: admission(of(own, "calls"), of(rows, "calls")),
    }
    for name, attempt in attempts.items():
        _keep(out, name, attempt)
    _keep(out, "handshake_s", lambda: handshake(of(own, "transfer"), out))
    _keep(out, "append_s", lambda: append(of(own, "append"), out))
    return out


def _keep(out: Fit, name: str, attempt: Callable[[], Fitted]) -> None:
    try:
        out.groups[name] = attempt()
    except RunError as error:
        out.missing[name] = str(error)


def of(rows: Sequence[Row], kind: str) -> list[Row]:
    return [r for r in rows if r["kind"] == kind]


def kv_bytes_per_token(shape: Row) -> int:
    """Layers x 2 x KV heads x head size x bytes a number."""
    heads = shape.get("num_key_value_heads") or shape["num_attention_heads"]
    size = shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"]
    return int(shape["num_hidden_layers"]) * 2 * int(heads) * int(size) * BYTES[shape.get("torch_dtype", "bfloat16")]


def expert_share(shape: Row) -> float:
    """Share of the experts that one token touches; 1 for a dense model."""
    return int(shape["num_experts_per_tok"]) / int(shape["num_experts"]) if shape.get("num_experts") else 1.0


def prefill_features(new: int, cached: int, chunk: int) -> list[float]:
    """Batches, new tokens, new x earlier tokens, tokens looked back at: what chunk_s, token_s, attention_s, prefix_s multiply."""
    batches, pairs, looked_back, computed = 0, 0.0, 0, cached
    while computed < cached + new:
        part = min(chunk, cached + new - computed)
        batches, pairs, looked_back = batches + 1, pairs + part * (computed + part / 2), looked_back + computed
        computed += part
    return [float(batches), float(new), pairs, float(looked_back)]


def prefill_seconds(new: int, cached: int, chunk: int, charge: dict[str, float]) -> float:
    """What a prompt takes by fitted coefficients."""
    return sum(f * charge[k] for f, k in zip(prefill_features(new, cached, chunk), PREFILL, strict=True))


def prefill(rows: Sequence[Row], chunk: int) -> Fitted:
    groups = _repeated(rows, ("new", "cached"))
    if len(groups) < 4:
        raise RunError(f"{len(groups)} different prompts measured, 4 coefficients need at least 4")
    features = [prefill_features(new, cached, chunk) for new, cached in groups]
    return _fitted(PREFILL, features, [_typical(v) for v in groups.values()])


def decode_features(batch: int, context: float, share: float) -> list[float]:
    """The step itself, share of the experts touched, context tokens read: what step_s, experts_s, context_s multiply."""
    touched = 1 - (1 - share) ** batch if share < 1 else 0.0
    return [1.0, touched, batch * context]


def decode(rows: Sequence[Row], share: float) -> Fitted:
    if len(rows) < 3:
        raise RunError(f"{len(rows)} decode points measured, at least 3 are needed")
    found = _fitted(("step_s", "experts_s", "context_s"), [decode_features(r["batch"], r["context"], share) for r in rows], [r["step_s"] for r in rows])
    values = {"step_s": found.values["step_s"], "experts_s": found.values["experts_s"], "expert_share": share, "context_s": found.values["context_s"]}
    return Fitted(values, found.points, found.low, found.high)


def transfer(rows: Sequence[Row], scattered: Sequence[Row]) -> Fitted:
    """`scattered`: prompts whose every token went into a run of its own; what they take beyond that is the price of a run."""
    warm = [r for r in rows if r["repeat"]]
    groups = _repeated(warm, ("bytes",))
    if len(groups) < 2:
        raise RunError("not measured" if not rows else f"{len(groups)} size measured, a rate needs two")
    measured = [_typical(v) for v in groups.values()]
    found = _fitted(("latency_s", "per_byte"), [[1.0, float(size)] for (size,) in groups], measured)
    latency, per_byte = found.values["latency_s"], found.values["per_byte"]
    if not per_byte:
        raise RunError("the time does not grow with the size: no rate can be told")
    values = {"latency_s": latency, "bytes_per_s": 1 / per_byte}
    note = f"{min(s / t for (s,), t in zip(groups, measured, strict=True)) / 1e9:.1f} to {max(s / t for (s,), t in zip(groups, measured, strict=True)) / 1e9:.1f} GB/s over all"
    runs = [(r["tokens"] - 1, r["seconds"] - latency - r["bytes"] * per_byte) for r in scattered if r["repeat"]]
    if runs:
        (values["run_s"],) = least_squares.relative([[n] for n, _ in runs], [more for _, more in runs])
        missed = least_squares.residuals([[n] for n, _ in runs], [more for _, more in runs], [values["run_s"]])
        note += f"; run_s from {len(runs)} prompts sent into {', '.join(str(n + 1) for n in sorted({n for n, _ in runs}))} scattered slots, residuals {min(missed):+.1%} to {max(missed):+.1%}"
    return Fitted(values, found.points, found.low, found.high, note)


def append(rows: Sequence[Row], so_far: Fit) -> Fitted:
    """The time that no append falls below although prefill would take less; 0 where prefill's price holds for them too."""
    if "prefill" not in so_far.groups:
        raise RunError("needs prefill")
    warm = [r for r in rows if r["repeat"]]
    if len(warm) < 5:
        raise RunError(f"{len(warm)} appends measured, 5 are needed")
    chunk, charge = int(so_far.server["chunk_tokens"]), so_far.groups["prefill"].values
    priced = [prefill_seconds(r["new"], r["cached"], chunk, charge) for r in warm]
    above = [r["seconds"] for r, price in zip(warm, priced, strict=True) if r["seconds"] > APPENDED * price]
    least = statistics.median(above) if len(above) > len(warm) / 3 else 0.0
    missed = [max(least, price) / r["seconds"] - 1 for r, price in zip(warm, priced, strict=True)]
    return Fitted({"append_s": least}, len(warm), min(missed), max(missed), f"{len(above)} took more than {APPENDED} times the price of their prefill")


def noise(rows: Sequence[Row]) -> Fitted:
    """Standard deviation of the logarithm of repeats around their prompt's mean; one degree of freedom lost a prompt."""
    squares, freedom = 0.0, 0
    for values in _repeated(rows, ("new", "cached")).values():
        logs = [math.log(v) for v in values]
        squares += sum((x - statistics.fmean(logs)) ** 2 for x in logs)
        freedom += len(logs) - 1
    if freedom < 5:
        raise RunError(f"{freedom} repeats measured, 5 are needed")
    return Fitted({"noise_sigma": math.sqrt(squares / freedom)}, freedom)


def rpc(own: Sequence[Row], every: Sequence[Row]) -> Fitted:
    """Median of the plugin's admission on an idle server, or of SGLang's own call through the scheduler. The note has those under load."""
    for path, rows in ((ASK, every), (COUPLED, own)):
        idle = [r["seconds"] for r in of(rows, "call") if r["path"] == path and r["status"] == 200]
        if len(idle) >= 5:
            loaded = [(r["running"], statistics.median(r["latencies_s"])) for r in of(rows, "calls") if r["path"] == path]
            note = "".join(f", {seconds * 1000:.1f} ms while {running} decode" for running, seconds in loaded)
            return Fitted({"rpc_s": statistics.median(idle)}, len(idle), note=f"{path}, idle{note}")
    raise RunError("no idle calls measured")


def admission(own: Sequence[Row], every: Sequence[Row]) -> Fitted:
    """Scheduler time of a call: what calls at a rate r make of a step, s' = s (1 + r t s' / s), solved for t, the largest load counting."""
    for path, rows in ((ASK, every), (COUPLED, own)):
        measured = [r for r in rows if r["path"] == path]
        if measured:
            prices = [(1 - r["quiet_step_s"] / r["step_s"]) / r["calls_per_s"] for r in measured]
            free = [1 - r["quiet_step_s"] / r["step_s"] for r in rows if r["path"] == SNAPSHOT]
            note = f"{path} while {', '.join(str(r['running']) for r in measured)} requests decode: {', '.join(f'{p * 1000:.3f}' for p in prices)} ms a call"
            if free:
                note += f"; {SNAPSHOT} slowed the same steps by {', '.join(f'{s:.1%}' for s in free)}"
            return Fitted({"admission_s": max(0.0, prices[-1])}, len(prices), note=note)
    raise RunError("no calls under load measured")


def handshake(rows: Sequence[Row], so_far: Fit) -> Fitted:
    """What is left of a first token through P and D after prefill, transfer and a decode step as fitted here: the median, since it varies."""
    if not {"prefill", "decode"} <= so_far.groups.keys():
        raise RunError("needs prefill and decode")
    chunk, share = int(so_far.server["chunk_tokens"]), expert_share(so_far.server)
    charge, step = so_far.groups["prefill"].values, so_far.groups["decode"].values
    left = []
    for row in rows:
        if not row["repeat"] or row["first_s"] is None:
            continue
        prompt = prefill_seconds(row["tokens"], 0, chunk, charge)
        one = sum(f * step[k] for f, k in zip(decode_features(1, row["tokens"], share), ("step_s", "experts_s", "context_s"), strict=True))
        left.append(row["first_s"] - prompt - one - row["seconds"])
    if not left:
        raise RunError("no transfers of this model measured")
    note = f"{min(left) * 1000:.1f} to {max(left) * 1000:.1f} ms left of a first token; the median is taken"
    return Fitted({"handshake_s": max(0.0, statistics.median(left))}, len(left), note=note)


def _repeated(rows: Sequence[Row], keys: tuple[str, ...]) -> dict[tuple[Any, ...], list[float]]:
    groups: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[k] for k in keys)].append(row["seconds"])
    return groups


def _typical(values: Sequence[float]) -> float:
    return statistics.median(values)


def _fitted(names: tuple[str, ...], features: list[list[float]], measured: list[float]) -> Fitted:
    found = least_squares.relative(features, measured)
    missed = least_squares.residuals(features, measured, found)
    return Fitted(dict(zip(names, found, strict=True)), len(measured), min(missed), max(missed))
