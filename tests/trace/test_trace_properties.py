"""Whatever the trace: how its file is laid out does not change it."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apd_replay.errors import InputError
from apd_replay.trace import table
from apd_replay.trace.reading import read
from apd_replay.trace.statistics import statistics

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
stamps = st.integers(-10**6, 10**6).map(lambda n: n / 1000)


@st.composite
def records(draw: st.DrawFn) -> list[dict[str, Any]]:
    out = []
    for session in range(draw(st.integers(1, 4))):
        for turn, at in enumerate(sorted(draw(st.lists(stamps, min_size=1, max_size=6)))):
            prompt = draw(st.integers(1, 3000))
            ids = draw(st.none() | st.just(list(range(session * 10, session * 10 + -(-prompt // 512)))))
            out.append({"session_id": f"s{session}", "turn": turn, "timestamp": at, "input_length": prompt,
                        "output_length": draw(st.integers(0, 500)), "hash_ids": ids})
    return out


def lay(folder: Path, rows: list[dict[str, Any]], end: str = "\n") -> Path:
    file = folder / "t.jsonl"
    file.write_bytes("".join(json.dumps(row) + end for row in rows).encode())
    return file


@quick
@given(rows=records(), seed=st.integers(0, 2**32))
def test_row_order_does_not_matter(tmp_path: Path, rows: list[dict[str, Any]], seed: int) -> None:
    trace = read(lay(tmp_path, rows))[0]
    random.Random(seed).shuffle(rows)
    assert read(lay(tmp_path, rows))[0] == trace


@quick
@given(rows=records())
def test_packing_and_line_ends_do_not_matter(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    trace = read(lay(tmp_path, rows))[0]
    assert read(lay(tmp_path, rows, "\r\n\r\n"))[0].digest == trace.digest
    (tmp_path / "t.jsonl.gz").write_bytes(gzip.compress(lay(tmp_path, rows).read_bytes()))
    assert read(tmp_path / "t.jsonl.gz")[0].digest == trace.digest
    (tmp_path / "t.json").write_text(json.dumps(rows, indent=2), encoding="utf-8-sig")
    assert read(tmp_path / "t.json")[0].digest == trace.digest
    table.write(trace, tmp_path / "t.parquet")
    assert table.read(tmp_path / "t.parquet") == trace


@quick
@given(rows=records(), shift=st.integers(-10**6, 10**6))
def test_the_origin_of_time_does_not_matter(tmp_path: Path, rows: list[dict[str, Any]], shift: int) -> None:
    trace = read(lay(tmp_path, rows))[0]
    moved = [row | {"timestamp": row["timestamp"] + shift} for row in rows]
    assert read(lay(tmp_path, moved))[0].digest == trace.digest


@quick
@given(rows=records())
def test_what_every_trace_keeps(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    trace = read(lay(tmp_path, rows))[0]
    found = statistics(trace)
    assert found["requests"] == len(rows) and found["input_tokens"] == sum(row["input_length"] for row in rows)
    assert min(s.turns[0].arrival_s for s in trace.sessions) == 0.0
    for session in trace.sessions:
        assert [t.turn for t in session.turns] == list(range(len(session.turns)))
        for turn in session.turns:
            assert (turn.gap_s is None) == (turn.turn == 0) and (turn.gap_s or 0.0) >= 0.0
            assert turn.shared_tokens is None or 0 <= turn.shared_tokens <= turn.input_tokens


@quick
@given(rows=records(), field=st.sampled_from(["output_length", "input_length", "timestamp", "turn", "session_id"]), data=st.data())
def test_any_change_changes_the_digest(tmp_path: Path, rows: list[dict[str, Any]], field: str, data: st.DataObject) -> None:
    trace = read(lay(tmp_path, rows))[0]
    row = data.draw(st.sampled_from(rows))
    if field == "output_length":
        row["output_length"] += 1
        assert read(lay(tmp_path, rows))[0].digest != trace.digest
    else:
        row[field] = {}
        with pytest.raises(Exception, match=f"column {field}"):
            read(lay(tmp_path, rows))


SAMPLES = (
    b'{"session_id":"a","turn":1,"timestamp":0,"input_length":700,"output_length":5,"hash_ids":[1,2]}\n{"session_id":"a","turn":2,"timestamp":2.5,"input_length":900,"output_length":"5"}\n',
    b'[{"chat_id":1,"parent_chat_id":-1,"timestamp":0,"input_length":16,"output_length":1,"hash_ids":[1]}]',
    b'{"id":"c","requests":[{"t":0,"in":64,"out":1,"hash_ids":[1]},{"t":1,"type":"subagent","requests":[{"t":1,"in":9,"out":1}]}]}',
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,5,1\r\n",
    b"session_id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n0,0,0,9,1,20\n",
)
PIECES = st.sampled_from([b"", b"null", b"1e999", b"-1", b"[]", b"{}", b'""', b"NaN", b"9" * 30, b"true", b"\n", b"\r", b"\x00", b"\xff", b'"', b","])


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sample=st.sampled_from(SAMPLES), at=st.floats(0, 1), cut=st.integers(0, 8), piece=PIECES, lenient=st.booleans())
def test_a_damaged_file_is_read_or_refused_in_one_line(tmp_path: Path, sample: bytes, at: float, cut: int, piece: bytes, lenient: bool) -> None:
    k = int(at * len(sample))
    (tmp_path / "t.jsonl").write_bytes(sample[:k] + piece + sample[k + cut :])
    try:
        read(tmp_path / "t.jsonl", lenient=lenient)
    except InputError as error:
        assert "\n" not in str(error) and "t.jsonl" in str(error)
