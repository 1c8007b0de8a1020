"""What a claim needs (`needs` in config/claims.yaml) and an experiment's runs do not have: which column, which log."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import duckdb

from apd_replay import configuration
from apd_replay.warehouse import database

_WHERE = {
    "turns": "the trace (import with --trace FILE)",
    "admissions": "structural/admission-events.jsonl",
    "pauses": "structural/backpressure-events.jsonl",
    "logs.prefill": "the P's logs (logs/prefill-*.log)",
    "logs.decode": "the D's logs (logs/decode-*.log)",
}


def needs(config: Path) -> dict[str, list[str]]:
    """Claim to what it needs: `requests.path`, `runs.time_scale`, `admissions`, `turns`, `logs.decode`; withdrawn claims need nothing."""
    return {claim: own.get("needs", []) for claim, own in configuration.claim_rules(config)["claims"].items()}


def missing(connection: duckdb.DuckDBPyConnection, experiments: Iterable[str], needed: Iterable[str]) -> dict[str, set[str]]:
    """Experiment to those of `needed` that none of its runs has: a column without a value, a table or a log without a row."""
    out: dict[str, set[str]] = {e: set() for e in experiments}
    for need in sorted(set(needed)) if out else ():
        having = {e for (e,) in connection.execute(_question(need)).fetchall()}
        for experiment in out.keys() - having:
            out[experiment].add(need)
    return out


def spoken(lacked: Iterable[str]) -> str:
    """`requests.path, requests.decode_worker and the D's logs (logs/decode-*.log)`."""
    words = [_WHERE.get(need, need) for need in sorted(lacked, key=lambda need: (need in _WHERE, need))]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def report(results: Path, experiments: Iterable[str], config: Path) -> list[str]:
    """A line for each experiment and what its claims lack."""
    claims, experiments = needs(config), list(experiments)
    with database.open_read_only(results) as connection:
        lacked = missing(connection, experiments, (need for own in claims.values() for need in own))
    lines = []
    for experiment in experiments:
        for claim, own in claims.items():
            if absent := lacked[experiment] & set(own):
                lines.append(f"{experiment}: {claim} cannot be decided in full without {spoken(absent)}")
    return lines


def _question(need: str) -> str:
    """The experiments that have it. Names come from config/claims.yaml, whose schema lets nothing but names pass."""
    table, _, column = need.partition(".")
    if table == "logs":
        return f"SELECT DISTINCT experiment FROM log_files WHERE role LIKE '%{column}%' AND row_lines > 0"
    if table == "turns":
        return "SELECT DISTINCT experiment FROM runs WHERE trace IN (SELECT DISTINCT trace FROM turns)"
    if table == "runs":
        return f'SELECT DISTINCT experiment FROM runs WHERE "{column}" IS NOT NULL'
    return f"SELECT DISTINCT experiment FROM {table}" + (f' WHERE "{column}" IS NOT NULL' if column else "")
