"""All excerpts of ../shared/data/logs give exactly the counts of their index, which people made by reading."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from apd_replay.logs.collect import collect

LOGS = Path(__file__).parents[3] / "shared/data/logs"
pytestmark = pytest.mark.skipif(not (LOGS / "index.csv").is_file(), reason="the handed excerpts (../shared/data/logs) are not here")

FAILURE_HEADS = ("Prefill transfer failed", "Prefill bootstrap failed", "Decode transfer failed", "Decode handshake failed")
REASONS = {
    "decode_could_be_dead": "Decode instance could be dead", "prefill_might_be_dead": "it might be dead", "send_kv_chunk_failed": "Failed to send kv chunk",
    "kvpoll_timeout": "KVPoll.", "aborted_by_abortreq": "Aborted by AbortReq", "unknown_other_rank": "unknown reason from another rank",
    "could_not_fetch_prefill": "Could not fetch",
}  # fmt: skip


def index() -> list[dict[str, str]]:
    if not (LOGS / "index.csv").is_file():
        return []
    with open(LOGS / "index.csv", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def figures(path: Path, fast: bool) -> dict[str, Any]:
    """The index's columns as the parser's rows and counts give them."""
    log = collect([path], path.parent, fast=fast)
    account = log.accounts[0]
    counts = json.loads(account["counts"])
    samples = [row for batch in log.samples.batches() for row in batch.to_pylist()]
    events = [row | {"more": json.loads(row["rest"] or "{}")} for batch in log.events.batches() for row in batch.to_pylist()]
    log.close()
    failures = [e for e in events if e["more"].get("head") in FAILURE_HEADS]
    whole = [e for e in failures if not e["more"].get("no_kv_transfer_error") and not e["more"].get("wrapped")]
    retracts = [e for e in events if e["kind"] == "retract"]
    rest = [json.loads(s["rest"] or "{}") for s in samples]

    def top(name: str) -> Any:
        return max((s[name] for s in samples if s[name] is not None), default=None)

    def top_rest(key: str) -> Any:
        return max((float(r[key]) for r in rest if key in r), default=None)

    return {
        "lines": account["lines"], "prefill_batch": counts.get("prefill", 0), "prefill_batch_cut": counts.get("prefill (cut)", 0),
        "decode_batch": counts.get("decode", 0), "decode_batch_cut": counts.get("decode (cut)", 0),
        "retract_events": len(retracts), "retract_cut": counts.get("retract (cut)", 0),
        "retracted_reqs_sum": sum(int(e["more"]["requests"]) for e in retracts),
        "kv_error_events": len(whole), "kv_error_cut": len(failures) - len(whole), "kv_error_rooms": len({e["room"] for e in whole}),
        **{f"{h.lower().replace(' ', '_')}": sum(e["more"]["head"] == h for e in whole) for h in FAILURE_HEADS if "handshake" not in h},
        **{name: sum(text in e["detail"] for e in whole) for name, text in REASONS.items()},
        "session_failed": sum(e["kind"] == "link_latched" for e in events),
        "http_access": counts.get("access", 0), "http_5xx": counts.get("access 5xx", 0), "router_lines": counts.get("router", 0),
        "glog_lines": counts.get("glog", 0), "tracebacks": counts.get("traceback", 0),
        "watchdog_timeouts": sum(e["kind"] == "watchdog" for e in events),
        "token_usage_min": min((s["token_usage"] for s in samples if s["token_usage"] is not None), default=None), "token_usage_max": top("token_usage"),
        "swa_usage_max": top_rest("swa token usage"), "mamba_usage_max": top_rest("mamba usage"), "prealloc_usage_max": top("preallocated_usage"),
        "running_max": top("running"), "queue_max": top("queued"), "transfer_req_max": top("transfer_queue"),
        "inflight_or_transferring_max": top("inflight_queue"), "retracted_req_max": top("retracted"), "cached_token_max": top("cached_tokens"),
        "ranks": len(account["ranks"]), "rank_list": " ".join(sorted({tag for tags in account["ranks"] for tag in tags.split()}, key=lambda t: (t.rstrip("0123456789"), int(t.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ_"))))),
        "prealloc_req_max": max((v for v in (top("prealloc_queue"), top("bootstrap_queue")) if v is not None), default=None),
        "role": account["role"],
    }  # fmt: skip


@pytest.mark.parametrize("fast", [False, True], ids=["line by line", "compiled"])
@pytest.mark.parametrize("row", index(), ids=lambda r: r["file"])
def test_counts_of_the_index(row: dict[str, str], fast: bool) -> None:
    found = figures(LOGS / row["file"], fast)
    role = found.pop("role")
    expected = {k: v for k, v in row.items() if k in found}
    wrong = {k: (v, found[k]) for k, v in expected.items() if not _same(v, found[k])}
    assert not wrong, f"{row['file']}: (index, parser) {wrong}"
    if role is not None:  # not every excerpt shows its role; what is shown is not another one
        stated = "unified" if row["role"] == "plain" else row["role"]
        assert role in (stated, "+".join(sorted(stated.split("+"))))
    unchecked = set(row) - set(expected) - {"file", "source", "source_kind", "version", "role", "form", "note"}
    assert not unchecked


def _same(stated: str, found: Any) -> bool:
    if stated == "":
        return found is None or found == ""
    return stated == found if isinstance(found, str) else found is not None and float(stated) == float(found)


def test_the_index_is_whole() -> None:
    assert len(index()) == 45 and {r["file"] for r in index()} == {p.name for p in LOGS.glob("*.log")}
