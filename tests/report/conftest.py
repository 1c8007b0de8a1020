"""A small results folder, made from the schemas: two engines, hostile text, infinite and missing figures."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from apd_replay import schemas
from apd_replay.warehouse import database

CONFIG = Path(__file__).parents[2] / "config"
HOSTILE = [
    "<script>alert(1)</script>",
    "a|b`c`[x](http://evil.example)",
    "nul\x00esc\x1b[31m\u202eright",
    "L" * 500,
    "'; DROP TABLE runs; --",
    '会话-6 & "quotes"',
    "]]></svg><img src=x onerror=alert(2)>",
    "{{ 7 * 7 }}",
]
Row = dict[str, Any]


def write_rows(file: Path, table: schemas.Table, rows: Sequence[Row]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    names = schemas.arrow(table).names
    pq.write_table(pa.Table.from_pylist([{n: r.get(n) for n in names} for r in rows], schema=schemas.arrow(table)), file)


def add_run(
    results: Path,
    experiment: str,
    replicate: int,
    engine: str,
    trace: str,
    *,
    sessions: Sequence[str],
    kvc: bool = True,
    logs: bool = True,
    failures: bool = True,
    config: Row | None = None,
) -> str:
    """One run: its manifest and all its tables. Every session has five turns, one of them fails on a latched link."""
    rng = random.Random(f"{experiment}/{replicate}")
    run_id = f"{experiment}-{replicate}-{engine}".replace("@", "-") + "-" + "0" * 20
    key = {"experiment": experiment, "replicate": replicate}
    requests, events, samples, transfers = [], [], [], []
    for s, session in enumerate(sessions):
        t = s * 0.7
        for turn in range(5):
            path = "dp" if not kvc else "seed" if turn == 0 else ("direct" if (s + turn) % 3 else "fallback")
            fails = failures and kvc and turn == 3 and path != "direct"
            room = rng.getrandbits(60) if path in ("seed", "fallback") else None
            start, took = t + rng.random(), 0.2 + 3 * rng.random()
            kind = ("kv_transfer" if s < 2 else "peer_dead") if fails else None
            requests.append(
                {
                    **key,
                    "request_id": f"{s}-{turn}",
                    "session": session,
                    "turn": turn,
                    "path": path,
                    "prefill_worker": f"prefill-{turn % 2}" if kvc else None,
                    "decode_worker": f"decode-{s % 11}" if kvc else f"worker-{s % 8}",
                    "scheduled_t": t,
                    "dispatched_t": start,
                    "first_token_t": None if fails else start + took / 2,
                    "finished_t": start + took,
                    "input_tokens": 1000 * (s + 1) * (turn + 1),
                    "cached_tokens": 0,
                    "output_tokens": 20,
                    "admission": "none" if turn == 0 else "admitted",
                    "pause_ms": 0.0,
                    "bootstrap_room": room,
                    "status": "error" if fails else "ok",
                    "error_kind": kind,
                    "error_message": "<b>boom</b>" if fails else None,
                }
            )
            t = start + took + 0.3
            if room is not None:
                outcome = {"kv_transfer": "real_failure", "peer_dead": "rejection", None: "ok"}[kind]
                transfers.append(
                    {
                        **key,
                        "room": room,
                        "session": session,
                        "turn": turn,
                        "prefill_worker": f"prefill-{turn % 2}",
                        "decode_worker": f"decode-{s % 11}",
                        "started_t": start,
                        "ended_t": start + took,
                        "outcome": outcome,
                        "wait_s": took,
                        "p_file": "logs/prefill-1.log" if fails else None,
                        "p_line": 7 if fails else None,
                    }
                )
    duration = max(r["finished_t"] for r in requests)
    workers = sorted({r["decode_worker"] for r in requests})
    for w, worker in enumerate(workers if logs else ()):
        line = {**key, "worker": worker, "role": "decode", "file": f"logs/{worker}.log", "offset": 0, "launch": 1}
        samples += [
            {**line, "line": k + 1, "t": k * duration / 40, "kind": "decode", "token_usage": min(1.0, 0.3 + rng.random())}
            for k in range(40)
        ]
        events += [
            {**line, "line": 100 + k, "t": rng.random() * duration, "kind": kind, "tokens": 5}
            for k, kind in enumerate(["trim"] * w + ["retract"])
        ]
    if logs and kvc:
        events.append(
            {
                **key,
                "worker": "prefill-1",
                "role": "prefill",
                "file": "logs/prefill-1.log",
                "offset": 0,
                "launch": 1,
                "line": 7,
                "t": 1.0,
                "kind": "link_latched",
                "peer": "10.0.0.1:5",
                "detail": "<i>x</i>",
            }
        )
        down = {**key, "worker": "prefill-1", "role": "prefill", "file": "logs/prefill-1.log", "offset": 0, "launch": 1, "kind": "crash"}
        events += [{**down, "line": 8, "t": 1.5}, {**down, "line": 9, "t": duration + 0.5}]
    rows = {
        "requests": requests,
        "worker_samples": samples,
        "worker_events": events,
        "transfers": transfers,
        "pauses": [{**key, "t": 1.0, "ts": 1.0, "decode_worker": workers[0], "sleep_ms": 200.0}] if kvc else [],
    }
    for table in schemas.TABLES.values():
        if table.per_run:
            write_rows(
                results / f"tables/{table.name}/experiment={experiment}/replicate={replicate}/part-0.parquet",
                table,
                rows.get(table.name, []),
            )
    manifest = {
        "run_id": run_id,
        **key,
        "engine": engine,
        "status": "complete",
        "trace": trace,
        "trace_digest": "f" * 64,
        "cluster": "2p6d" if kvc else "8dp",
        "policy": "kv_aware" if kvc else "cache_aware",
        "time_scale": 10.0,
        "concurrency": 32,
        "seed": replicate,
        "model": "<m>",
        "started_ts": 1777996800.0,
        "duration_s": duration,
        "requests": len(requests),
        "errors": sum(r["status"] == "error" for r in requests),
        "versions": {"apd": "0"},
        "config": config or {},
    }
    file = results / f"runs/{experiment}/r{replicate}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(manifest))
    return run_id


def evidence_row(
    engine: str,
    trace: str,
    claim: str,
    metric: str,
    experiment: str | None,
    replicate: int | None,
    value: float | None,
    scope: str | None = None,
    **more: Any,
) -> Row:
    return {
        "engine": engine,
        "trace": trace,
        "claim": claim,
        "metric": metric,
        "experiment": experiment,
        "replicate": replicate,
        "scope": scope,
        "value": value,
        "n": None,
        **more,
    }


def all_evidence(engine: str, trace: str, experiment: str, replicates: int) -> list[Row]:
    rng = random.Random(f"{engine}/{trace}")
    out: list[Row] = []

    def each(claim: str, metric: str, scopes: Sequence[str | None] = (None,), size: float = 1.0, unit: str | None = "s") -> None:
        out.extend(
            evidence_row(engine, trace, claim, metric, experiment, n + 1, size * (0.5 + rng.random()), scope, unit=unit)
            for scope in scopes
            for n in range(replicates)
        )

    decode, prefill, pairs = (
        [f"decode-{k}" for k in range(6)],
        ["prefill-0", "prefill-1"],
        [f"prefill-{p}>decode-{d}" for p in range(2) for d in range(6)],
    )
    each("s0", "errors", size=400, unit="requests")
    for metric in ("latency_p50", "latency_p90", "ttft_p50"):
        each("s0", metric)
    each("s1", "direct_rate_bin", ("0-20", "20-40", "40-60", "60-80", "80-100"), 12, "sessions")
    each("s1", "latency_mean", ("direct", "fallback"))
    each("s2", "trims", decode, 30, "trims")
    each("s2", "failed_rooms", decode, 90, "rooms")
    each("s2", "peak_token_usage", decode, 0.7, "share")
    each("s3", "failed_rooms", size=369, unit="rooms")
    each("s3", "wait_p50", size=5)
    each("s3", "wait_max", size=30)
    each("s4", "admission_latency_p99", decode, 0.01)
    each("s5", "failed_rooms", [*prefill, *pairs], 60, "rooms")
    each("s5", "rejections", prefill, 50, "rooms")
    for metric in ("gap_p10", "gap_p50", "gap_p90", "gap_p99", "gap_max"):
        each("s7", metric, ("trace", "replay"))
    each("s8", "real_failures", pairs, 2, "rooms")
    each("s8", "rejections", pairs, 60, "rooms")
    each("s9", "shard_delay_ratio", size=2, unit="ratio")
    for metric in ("errors", "latency_mean", "latency_p50", "latency_p90", "ttft_p50", "response_p90"):
        each("headline", metric)
    out += [
        evidence_row(engine, trace, "headline", "response_p99", experiment, 1, float("inf"), unit="s"),
        evidence_row(engine, trace, "headline", "response_mean", None, None, 2.32, low=2.11, high=2.55, unit="ratio", n=replicates),
        evidence_row(engine, trace, "headline", "latency_p50", None, None, float("inf"), unit="ratio", n=replicates),
        evidence_row(engine, trace, "headline", "ttft_p50", None, None, None, unit="ratio", n=replicates),
        evidence_row(engine, trace, "s1", "starved_peak_input_mean", experiment, None, 62043.0, unit="tokens", n=replicates),
        evidence_row(engine, trace, "errata", "latency_mean_change", experiment, None, 1.32, unit="change", n=replicates),
        evidence_row(engine, trace, "s7", "errors_change", None, None, -0.02, low=-0.05, high=0.01, unit="difference", n=replicates),
    ]
    return out


def verdict_row(engine: str, trace: str, claim: str, verdict: str, **more: Any) -> Row:
    return {
        "claim": claim,
        "engine": engine,
        "trace": trace,
        "statement": f"what {claim} says <b>&",
        "structural": "strong",
        "impact": "large",
        "verdict": verdict,
        "leaning": None,
        "n": 3,
        "effect": 2.5,
        "effect_low": None,
        "effect_high": None,
        "unit": "ratio",
        "experiments": None,
        "runs": ["run-a", "run-b"],
        "confounders": ["load <i>", "N"],
        "fix": "F1",
        "fix_effect": "halved it",
        "notes": "because | so",
        **more,
    }


WORDS = {
    "s0": "holds",
    "s1": "holds",
    "s2": "undecided",
    "s3": "undecided",
    "s4": "undecided",
    "s5": "undecided",
    "s6": "withdrawn",
    "s7": "partly",
    "s8": "holds",
    "s9": "refuted",
    "s10": "undecided",
    "headline": "provisional",
}


def write_claims(results: Path, evidence: Sequence[Row], verdicts: Sequence[Row]) -> None:
    write_rows(results / "claims/evidence.parquet", schemas.EVIDENCE, evidence)
    write_rows(results / "claims/verdicts.parquet", schemas.VERDICTS, verdicts)


def fabricate(
    results: Path,
    groups: Sequence[tuple[str, str, str]] = (("imported", "golden <b>", "@g"), ("sim", "swebench-52", "")),
    *,
    sessions: Sequence[str] = HOSTILE,
    replicates: int = 3,
    **how: Any,
) -> Path:
    evidence: list[Row] = []
    verdicts: list[Row] = []
    for engine, trace, suffix in groups:
        for n in range(replicates):
            add_run(results, f"E0{suffix}", n + 1, engine, trace, sessions=sessions, **how)
        add_run(results, f"E6{suffix}", 1, engine, trace, sessions=sessions, kvc=False, logs=False)
        evidence += all_evidence(engine, trace, f"E0{suffix}", replicates)
        verdicts += [
            verdict_row(engine, trace, claim, word, leaning="holds" if word == "undecided" else None) for claim, word in WORDS.items()
        ]
    write_claims(results, evidence, verdicts)
    database.build(results)
    return results


@pytest.fixture
def make_results(tmp_path: Path) -> Callable[..., Path]:
    return lambda *args, **how: fabricate(tmp_path / "results", *args, **how)


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two engines, hostile session ids; its report is written once for all tests that only read it."""
    from click.testing import CliRunner

    from apd_replay.report.command import report

    folder = fabricate(tmp_path_factory.mktemp("report") / "results")
    outcome = CliRunner().invoke(report, ["--results", str(folder), "--config", str(CONFIG)], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return folder
