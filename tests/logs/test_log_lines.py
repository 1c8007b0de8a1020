"""What each line means: a fixture per version and per trap."""

from __future__ import annotations

import json
from typing import Any

import log_lines as L
import pytest

from apd_replay import schemas
from apd_replay.logs.parser import LogParser
from apd_replay.logs.prefix import rank
from apd_replay.logs.spool import RANKS


def parse(*lines: str | bytes, last: bool = True) -> tuple[LogParser, list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    parser = LogParser()
    for number, line in enumerate(lines, start=1):
        parser.line(line if isinstance(line, bytes) else line.encode(), number, 100 * number)
    assert sum(parser.lines.values()) == len(lines)
    return parser, *parser.take(last=last)


def column(row: dict[str, Any], name: str) -> Any:
    return rank(row["tags"], RANKS[name]) if name in RANKS else row.get(name)


@pytest.mark.parametrize(("version", "line", "expected"), L.BATCHES, ids=[b[0] for b in L.BATCHES])
def test_batch_lines_of_every_version(version: str, line: str, expected: dict[str, object]) -> None:
    parser, samples, events, _ = parse(line)
    assert len(samples) == 1 and not events and parser.lines == {"row": 1}
    assert {name: column(samples[0], name) for name in expected} == expected
    known = set(schemas.WORKER_SAMPLES.names) | {"tags"}
    assert set(samples[0]) <= known


def test_values_without_a_column_are_kept() -> None:
    _, samples, _, _ = parse(L.BATCHES[10][1], L.BATCHES[0][1], L.BATCHES[6][1])
    assert json.loads(samples[0]["rest"]) == {"#swa token": "768", "swa token usage": "0.50", "accept len": "5.30", "accept rate": "0.86", "cuda graph": "True"}
    assert json.loads(samples[1]["rest"])["cache hit rate"] == "2.76%"
    assert json.loads(samples[2]["rest"])["iteration"] == "51341"


@pytest.mark.parametrize(("line", "kind", "expected"), L.EVENTS, ids=[f"{kind} {i}" for i, (_, kind, _) in enumerate(L.EVENTS)])
def test_event_lines(line: str, kind: str, expected: dict[str, object]) -> None:
    parser, samples, events, _ = parse(line)
    assert [e["kind"] for e in events] == [kind] and not samples and parser.lines == {"row": 1}
    assert {name: events[0].get(name) for name in expected} == expected
    assert events[0]["line"] == 1 and events[0]["offset"] == 100 and events[0]["ts"] == 1777996803.0


def test_every_event_kind_has_a_line() -> None:
    seen = {kind for _, kind, _ in L.EVENTS} | {"mooncake_timeout", "exception"}
    assert seen == set(schemas.EVENT_KINDS)


def test_the_role_decides_what_prealloc_means() -> None:
    line = L.T + "Prefill batch, #new-seq: 1, #new-token: 5, #cached-token: 0, token usage: 0.00, #running-req: 0, #queue-req: 1, #prealloc-req: 6"
    _, on_prefill, _, _ = parse(L.SERVER_ARGS.format(mode="prefill"), line)
    _, on_decode, _, _ = parse(L.SERVER_ARGS.format(mode="decode"), line)
    assert (on_prefill[0]["bootstrap_queue"], on_prefill[0].get("prealloc_queue")) == (6, None)
    assert (on_decode[0].get("bootstrap_queue"), on_decode[0]["prealloc_queue"]) == (None, 6)


@pytest.mark.parametrize("form", [L.SERVER_ARGS, L.SERVER_ARGS_DICT])
@pytest.mark.parametrize(("mode", "role"), [("prefill", "prefill"), ("decode", "decode"), ("null", "unified")])
def test_the_role_comes_from_the_server_arguments(form: str, mode: str, role: str) -> None:
    parser, samples, _, _ = parse(form.format(mode=mode), L.BATCHES[1][1])
    assert samples[0]["role"] == role and parser.arguments is not None and parser.arguments["disaggregation_mode"] == mode
    assert parser.arguments["model_path"].startswith("m")


def test_two_runs_in_one_file_are_told_apart() -> None:
    parser, samples, _, _ = parse(L.SERVER_ARGS.format(mode="prefill"), L.BATCHES[1][1], L.SERVER_ARGS.format(mode="decode"), L.BATCHES[1][1])
    assert [(s["launch"], s["role"]) for s in samples] == [(1, "prefill"), (2, "decode")] and parser.launches == 2


def test_a_traceback_is_one_event_chained_or_not() -> None:
    parser, _, events, _ = parse(*L.TRACEBACK, L.EVENTS[1][0])
    assert [(e["kind"], e["line"]) for e in events] == [("exception", 1), ("pool_leak", 4), ("ready", 12)]
    assert events[0]["detail"] == "RuntimeError: second" and events[0]["tags"] == "TP4"
    assert parser.counts["traceback"] == 2 and not parser.lines["unknown"] and parser.role == "decode"


def test_a_client_abort_is_no_transfer_error_and_a_trim_is_no_session_event() -> None:
    _, _, events, _ = parse(L.T + L.P_FAILED + "Aborted by AbortReq.", L.T + "Session trim: evicted 3 idle sessions, 4 tokens freed")
    assert [e["kind"] for e in events] == ["abort", "trim"]


def test_a_wrapped_reason_is_joined() -> None:
    _, _, events, _ = parse((L.T + L.P_FAILED).rstrip(), "Decode instance could be dead, remote mooncake session 1.2.3.4:5 is not alive")
    assert [(e["kind"], e["peer"], e["room"]) for e in events] == [("peer_dead", "1.2.3.4:5", L.ROOM)]


@pytest.mark.parametrize("cut", ["Prefill batc", "Decode batch", "Decode batch, #running-req: 6, #to", "Prefill batch, #new-seq: 1, #queue-req: 0, #pending-toke",
                                 "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.1 ->", "server_args=ServerArgs(model_path='x"])  # fmt: skip
def test_cut_lines_are_counted_and_give_no_row(cut: str) -> None:
    parser, samples, events, _ = parse(L.T + cut)
    assert parser.lines == {"cut": 1} and not samples and not events


@pytest.mark.parametrize("before", ["\x1b[36m(SGLangEngine pid=3, ip=10.0.0.1)\x1b[0m ", "> ", "(Actor pid=7) ", "decode-1  | ", "2026-05-05T16:00:03.123456789Z ",
                                    "Capturing batches (bs=8):  40%|#### | 4/10 [00:01<00:02, 4.08it/s]\r", "@c:\\log-1.txt "])  # fmt: skip
def test_wrappings_do_not_hide_a_line(before: str) -> None:
    parser, samples, _, _ = parse(before + L.BATCHES[9][1])
    assert len(samples) == 1 and samples[0]["ts"] == 1777996803.0 and parser.lines == {"row": 1}


def test_dockers_json_log_is_unwrapped_and_crlf_is_no_text() -> None:
    _, samples, _, _ = parse(json.dumps({"log": L.BATCHES[9][1] + "\n", "stream": "stderr"}, separators=(",", ":")), L.BATCHES[9][1] + "\r")
    assert len(samples) == 2 and samples[0]["throughput"] == samples[1]["throughput"] == 565264.55


def test_what_stands_in_front_of_a_stamp_is_kept() -> None:
    _, samples, _, _ = parse("@c:\\log-1.txt " + L.BATCHES[9][1], "(Actor pid=7) " + L.BATCHES[9][1])
    assert json.loads(samples[0]["rest"])["lead"] == "@c:\\log-1.txt" and json.loads(samples[1]["rest"])["ray"] == "Actor pid=7"


def test_glued_lines_are_two() -> None:
    parser, samples, events, _ = parse(L.BATCHES[9][1] + L.EVENTS[2][0], L.BATCHES[1][1] + L.GLOG_TIMEOUT)
    assert len(samples) == 2 and [e["kind"] for e in events] == ["trim", "mooncake_timeout"] and parser.lines == {"row": 2}


def test_glog_has_the_year_of_the_lines_before() -> None:
    _, _, events, _ = parse(L.GLOG_TIMEOUT, L.EVENTS[1][0], L.GLOG_TIMEOUT)
    assert [e["ts"] for e in events if e["kind"] == "mooncake_timeout"] == [None, 1777996804.25]


@pytest.mark.parametrize("text", ["Receive: obj=GenerateReqInput(rid='a', text='{}')", "Finish: obj=GenerateReqInput(text='{}'), out={{}}", '{{"event": "request.received", "text": "{}"}}',
                                  'INFO:     1.2.3.4:5 - "GET /?q={} HTTP/1.1" 404 Not Found'])  # fmt: skip
def test_a_line_inside_somebodys_text_is_no_line(text: str) -> None:
    _parser, samples, events, _ = parse(L.T + text.format(L.BATCHES[9][1]), L.T + text.format(L.EVENTS[2][0]))
    assert not samples and not events


def test_request_stats_from_three_sources() -> None:
    finished = {"event": "request.finished", "rid": "j", "obj": {"bootstrap_room": 5, "text": "secret"}, "out": {"meta_info": {"prompt_tokens": 7, "completion_tokens": 2, "e2e_latency": 0.5, "finish_reason": {"type": "stop"}}}}
    export = {"rid": "e", "prompt_tokens": 7, "completion_tokens": 2, "cached_tokens": 1, "e2e_latency": 0.25, "finish_reason": {"type": "length"}}
    text = L.T + "Finish: obj=GenerateReqInput(rid='t', bootstrap_room=9), out={'text': '', 'meta_info': {'id': 't', 'finish_reason': {'type': 'length', 'length': 1}, 'prompt_tokens': 3, 'completion_tokens': 1, 'cached_tokens': 2, 'e2e_latency': 0.125}}"
    _, _, _, stats = parse(L.STATS, L.T + json.dumps(finished), json.dumps(export), text)
    assert [(s["source"], s["rid"], s.get("room"), s["input_tokens"], s["output_tokens"]) for s in stats] == [
        ("time_stats", "r1", L.ROOM, 16384, 8), ("request_log", "j", 5, 7, 2), ("export", "e", None, 7, 2), ("request_log", "t", 9, 3, 1)]  # fmt: skip
    assert (stats[0]["transfer_ms"], stats[0]["side"], stats[0]["entry_ts"], stats[3]["latency_s"]) == (92.28, "decode", 1777967999.72, 0.125)
    assert "secret" not in json.dumps(stats)


def test_unknown_lines_are_counted_by_shape_and_known_noise_is_not() -> None:
    parser, *_ = parse(L.T + "request 17 of 'a' took 5 ms", L.T + "request 99 of 'b b' took 12 ms", L.T + "Load weight begin. avail mem=1 GB", L.ACCESS, L.ROUTER, "")
    assert [(s, f.count, f.line) for s, f in parser.shapes.found.items()] == [("request N of ~ took N ms", 2, 1)]
    assert parser.lines == {"unknown": 2, "known": 4} and parser.counts["access"] == 1 and parser.role == "router"


@pytest.mark.parametrize("line", ["INFO:     Waiting for background tasks to complete. (CTRL+C to force quit)", "INFO:     Waiting for connections to close. (CTRL+C to force quit)",
                                  "apd_replay events: none from here on: [Errno 28] No space left on device"])  # fmt: skip
def test_what_a_busy_server_says_as_it_goes_down_is_known(line: str) -> None:
    parser, *_ = parse(line)
    assert parser.lines["known"] == 1 and not parser.lines["unknown"]


def test_bad_utf8_is_counted_and_read() -> None:
    parser, _samples, _, _ = parse(L.BATCHES[9][1].encode() + b"\xff\xfe", L.T.encode() + b"Session opened: \xff (active=1)")
    assert parser.bad_utf8 == 2 and sum(parser.lines.values()) == 2


def test_tags_are_a_set_in_any_order() -> None:
    for tags in ("DP1 TP3 PP2", "PP2 DP1 TP3", "TP3 PP2 EP3 DP1"):
        _, samples, _, _ = parse(L.BATCHES[9][1].replace("]", f" {tags}]", 1))
        assert [column(samples[0], n) for n in RANKS] == [1, 3, 2]
