"""Each format, from a file written here: found by its content, and what its columns become."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from apd_replay.errors import InputError
from apd_replay.trace import reading as reading_module
from apd_replay.trace.formats import formats
from apd_replay.trace.model import Turn
from apd_replay.trace.reading import read

DOCS = Path(__file__).parent.parent.parent / "docs" / "traces.md"


def turns(file: Path, name: str | None = None) -> dict[str, list[Turn]]:
    return {s.id: list(s.turns) for s in read(file, name)[0].sessions}


def test_every_format_is_documented() -> None:
    text = DOCS.read_text()
    for name in formats():
        assert f"`{name}`" in text, f"docs/traces.md does not name {name}"


@pytest.mark.parametrize("first", [0, 1])
def test_session(write: Any, turn: Any, first: int) -> None:
    file = write("s.jsonl", turn("a", first, 5.0, 1000, hash_ids=[1, 2]), turn("a", first + 1, 7.5, 1600, hash_ids=[1, 2, 3, 4]), turn("b", first, 6.0, 10))
    trace, reading = read(file)
    assert reading.format == "session" and trace.name == "s" and trace.requests == 3
    assert trace.sessions[0].turns == (
        Turn("a", 0, 0.0, None, None, 1000, 10, None, (1, 2), 512),
        Turn("a", 1, 2.5, 2.5, "arrival", 1600, 10, 1010, (1, 2, 3, 4), 512),
    )
    assert trace.sessions[1].turns == (Turn("b", 0, 1.0, None, None, 10, 10, None, None, None),)


def test_session_with_api_and_think_time(write: Any, turn: Any) -> None:
    file = write("s.jsonl", turn("a", 1, 0.0, 10, api_time=6.7, think_time=0.0), turn("a", 2, 20.0, 30, api_time=None, think_time=13.0),
                 turn("a", 3, 40.0, 50, api_time=1.0, think_time=90.0), turn("a", 4, 44.5, 70))
    trace, reading = read(file)
    assert [(t.gap_s, t.gap_kind) for t in trace.sessions[0].turns] == [(None, None), (13.0, "think"), (20.0, "arrival"), (3.5, "think")]
    assert reading.assembly is not None and reading.assembly.waits_unknown == 1 and reading.assembly.arrival_gaps == 1


def test_session_milliseconds_by_name(write: Any, turn: Any) -> None:
    file = write("s.jsonl", turn("a", 1, 0, 10), turn("a", 2, 2500, 30))
    assert turns(file, "session-ms")["a"][1].gap_s == 2.5
    trace, reading = read(file)
    assert trace.sessions[0].turns[1].gap_s == 2500.0
    assert any("session-ms" in note for note in reading.notes()), "whole numbers and huge gaps are suspicious"


def test_mooncake(write: Any) -> None:
    file = write("m.jsonl", {"timestamp": 500, "input_length": 600, "output_length": 7, "hash_ids": [0, 1]},
                 {"timestamp": 3500, "input_length": 700, "output_length": 8, "hash_ids": [0, 2]})
    assert turns(file) == {"request-0": [Turn("request-0", 0, 0.0, None, None, 600, 7, None, (0, 1), 512)],
                           "request-1": [Turn("request-1", 0, 3.0, None, None, 700, 8, None, (0, 2), 512)]}


def test_bailian_loop_of_parents(write: Any) -> None:
    row = {"timestamp": 0.0, "input_length": 10, "output_length": 1, "hash_ids": [1]}
    file = write("b.jsonl", {"chat_id": 1, "parent_chat_id": 2, **row}, {"chat_id": 2, "parent_chat_id": 1, **row})
    with pytest.raises(InputError, match="form a loop"):
        read(file)


def test_bailian_parent_outside_the_file(write: Any) -> None:
    row = {"input_length": 10, "output_length": 1}
    file = write("b.jsonl", {"chat_id": 8, "parent_chat_id": 3, "timestamp": 0.0, **row}, {"chat_id": 9, "parent_chat_id": 8, "timestamp": 4.0, **row})
    trace, reading = read(file)
    assert [s.id for s in trace.sessions] == ["8"] and trace.sessions[0].turns[1].gap_s == 4.0
    assert reading.assembly is not None and reading.assembly.orphans == 1


def conversation(name: str) -> dict[str, Any]:
    def request(t: float, prompt: int, ids: list[int], **more: object) -> dict[str, Any]:
        return {"t": t, "type": "s", "in": prompt, "out": 5, "hash_ids": ids, **more}

    return {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": [
        request(0.0, 130, [1, 2], api_time=4.0, think_time=0.0),
        {"t": 4.5, "type": "subagent", "agent_id": "x", "requests": [request(4.5, 70, [9], api_time=1.0), request(7.5, 140, [9, 10], api_time=1.0, think_time=2.0)]},
        request(10.0, 200, [1, 2, 3], api_time=1.0, think_time=6.0),
    ]}


@pytest.mark.parametrize("indent", [None, 1])
def test_weka(write: Any, indent: int | None) -> None:
    found = turns(write("w.json", json.dumps(conversation("c"), indent=indent)))
    assert list(found) == ["c", "c/1-x"]
    assert [(t.arrival_s, t.gap_s, t.gap_kind, t.input_tokens, t.block_size) for t in found["c"]] == [(0.0, None, None, 130, 64), (10.0, 6.0, "think", 200, 64)]
    assert [(t.arrival_s, t.gap_s) for t in found["c/1-x"]] == [(4.5, None), (7.5, 2.0)]
    assert found["c"][1].shared_tokens == 135


def test_weka_conversations_share_no_blocks(write: Any) -> None:
    found = turns(write("w.jsonl", conversation("c"), conversation("d")))
    ids = [{i for t in found[name] for i in t.hash_ids or ()} for name in ("c", "d")]
    assert len(ids[0]) == len(ids[1]) == 3 and not ids[0] & ids[1]


def test_weka_names_the_request(write: Any) -> None:
    broken = conversation("c")
    broken["requests"][2]["in"] = -4
    with pytest.raises(InputError, match=r"w\.jsonl:2: column requests\[2\]\.in: expected a whole number from 1"):
        read(write("w.jsonl", conversation("d"), broken))


def test_azure(write: Any) -> None:
    found = turns(write("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.9799600,10,1", "2023-11-16 18:17:04.0319600,20,2"))
    assert [(t[0].arrival_s, t[0].input_tokens) for t in found.values()] == [(0.0, 10), (0.052, 20)]
    zoned = turns(write("z.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", "2024-05-12 00:00:00.5+00:00,10,1", "2024-05-12 02:00:01+02:00,20,2"))
    assert [t[0].arrival_s for t in zoned.values()] == [0.0, 0.5]


def test_burstgpt(write: Any) -> None:
    plain = turns(write("b.csv", "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", "5,ChatGPT,472,18,490,Conversation log", "45,GPT-4,17,0,17,API log"))
    assert [(t[0].arrival_s, t[0].input_tokens, t[0].output_tokens) for t in plain.values()] == [(0.0, 472, 18), (40.0, 17, 0)]
    third = turns(write("b3.csv", "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
                        "19440110.0,u-1,43,GPT-4,906,446,1352,Conversation log", "19440200.0,u-1,2,GPT-4,1400,29,65,Conversation log",
                        "19440200.0,,2,GPT-4,7,1,8,API log"))
    assert [(t.gap_s, t.gap_kind) for t in third["u-1"]] == [(None, None), (47.0, "think")] and len(third) == 2


def test_tracelab(write: Any) -> None:
    found = turns(write("t.csv", "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms",
                        "0,117,0,0,2318,200,300", "0,117,1,2518,348,131,154", "1,393,0,0,861,107,0"))
    assert found["0"] == [Turn("0", 0, 0.0, None, None, 2318, 200, None, None, None), Turn("0", 1, 0.3, 0.3, "think", 2866, 131, 2518, None, None)]
    assert found["1"][0].arrival_s == 0.276
    without = turns(write("u.csv", "id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms", "x,0,0,9,1,50", "x,1,4,9,1,0"))
    assert [(t.input_tokens, t.gap_s, t.shared_tokens) for t in without["x"]] == [(9, None, None), (13, 0.05, 4)]


def test_tracelab_rounds(write: Any) -> None:
    def event(kind: str, second: str) -> dict[str, str]:
        return {"event_type": kind, "timestamp": f"2026-06-01T05:40:{second}Z"}

    found = turns(write("r.jsonl",
                        {"session_id": "s", "round_index": 0, "input_tokens_total": 100, "output_tokens": 9, "prefix_tokens": 90,
                         "timing_events": [event("user_message", "20.100"), event("reasoning", "22.0"), event("tool_call", "23.6")]},
                        {"session_id": "s", "round_index": 1, "input_tokens_total": 150, "output_tokens": 9, "prefix_tokens": 0,
                         "timing_events": [event("tool_result", "24.000"), event("tool_result", "25.6"), event("text", "27.0")]}))
    assert found["s"] == [Turn("s", 0, 0.0, None, None, 100, 9), Turn("s", 1, 5.5, 2.0, "think", 150, 9, 109)]


def test_unknown_format_and_name(write: Any) -> None:
    file = write("x.jsonl", {"prompt": "hello", "answer": "x"})
    with pytest.raises(InputError, match=r"x\.jsonl:1: no known trace format; its fields: answer, prompt; known: .*mooncake"):
        read(file)
    with pytest.raises(InputError, match="unknown trace format 'mooncakes'; known: "):
        read(file, "mooncakes")


def test_the_documented_example_is_a_format(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    example = re.search(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert example
    module: dict[str, Any] = {}
    exec(example[1], module)
    monkeypatch.setattr(reading_module, "formats", lambda: {f.name: f for f in module["FORMATS"]})
    found = turns(write("e.csv", "when,who,prompt,answer", "3,me,5,1", "4.5,me,9,2"))
    assert [(t.arrival_s, t.input_tokens) for t in found["me"]] == [(0.0, 5), (1.5, 9)]
