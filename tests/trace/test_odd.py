"""What is odd in real traces: each kind from a file written here, and every case of ../shared/data/odd, where that folder is."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from apd_replay.errors import InputError
from apd_replay.trace.model import Trace
from apd_replay.trace.reading import Reading, read
from apd_replay.trace.statistics import statistics

ODD = Path(__file__).parent.parent.parent.parent / "shared" / "data" / "odd"


def gaps(trace: Trace) -> list[float]:
    return sorted(t.gap_s for s in trace.sessions for t in s.turns if t.gap_s is not None)


def lines_of(reading: Reading) -> list[int]:
    return [r.line for r in reading.rejections]


# written here -----------------------------------------------------------------------------------------------------------


def test_blank_lines_and_no_final_newline(write: Any, turn: Any) -> None:
    text = f"\n{json.dumps(turn('a', 1, 0, 5))}\n  \n\t\n{json.dumps(turn('a', 2, 2, 9))}"
    trace, reading = read(write("f.jsonl", text.encode()))
    assert trace.requests == 2 and reading.rejected == 0
    with pytest.raises(InputError, match=r"f\.jsonl:7: "):
        read(write("f.jsonl", (text + "\n\n{oops\n").encode()))


def test_byte_order_mark(write: Any, turn: Any) -> None:
    trace, _ = read(write("f.jsonl", b"\xef\xbb\xbf" + json.dumps(turn("a", 1, 0, 5)).encode()))
    assert trace.requests == 1
    trace, _ = read(write("f.csv", b"\xef\xbb\xbfTIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03,5,1\r\n"))
    assert trace.requests == 1


def test_carriage_returns(write: Any, turn: Any) -> None:
    text = "".join(json.dumps(turn("a", k, k, 5 * k, note="x")) + "\r\n" for k in (1, 2, 3))
    assert read(write("f.jsonl", text.encode()))[0].digest == read(write("g.jsonl", text.replace("\r", "").encode()))[0].digest


def test_gzip_whole_and_cut_off(write: Any, turn: Any) -> None:
    lines = [turn("a", k, 2.0 * k, 5 * k, note=str(k * 7919)) for k in range(1, 60)]
    plain = write("f.jsonl", *lines)
    packed = gzip.compress(plain.read_bytes())
    assert read(write("f.jsonl.gz", packed))[0] == read(plain)[0]
    for lenient in (False, True):
        with pytest.raises(InputError, match="cut off"):
            read(write("cut.jsonl.gz", packed[: len(packed) * 6 // 10]), lenient=lenient)
    with pytest.raises(InputError, match="damaged"):
        read(write("bad.jsonl.gz", packed[:-8] + b"\0" * 8))


def test_not_utf8(write: Any) -> None:
    with pytest.raises(InputError, match=r"f\.jsonl:2: byte 0xe9 is not UTF-8"):
        read(write("f.jsonl", b'{"a":1}\n{"b":"\xe9"}\n'))


def test_json_array(write: Any, turn: Any) -> None:
    rows = [turn("a", 1, 0, 5), turn("a", 2, 2, 9)]
    assert read(write("f.json", json.dumps(rows, indent=1).encode()))[0].digest == read(write("g.jsonl", *rows))[0].digest
    rows[1]["input_length"] = None
    with pytest.raises(InputError, match=r"f\.json:9: column input_length: missing"):
        read(write("f.json", json.dumps(rows, indent=1).encode()))
    with pytest.raises(InputError, match="one whole array"):
        read(write("f.json", json.dumps(rows, indent=1).encode()[:-20]))


def test_a_line_that_is_not_json(write: Any, turn: Any) -> None:
    file = write("f.jsonl", turn("a", 1, 0, 5), '{"session_id": "a", "timestamp": 1 2}', "[1]", turn("a", 2, 2, 9))
    with pytest.raises(InputError, match=r"f\.jsonl:2: column 36: not valid JSON.*--lenient"):
        read(file)
    trace, reading = read(file, lenient=True)
    assert trace.requests == 2 and lines_of(reading) == [2, 3] and any("rows rejected: 2" in n for n in reading.notes())


def test_context_compaction(write: Any, turn: Any) -> None:
    file = write("f.jsonl", turn("a", 1, 0, 5120, hash_ids=list(range(10))), turn("a", 2, 2, 1536, hash_ids=[0, 1, 90]), turn("a", 3, 4, 2048, hash_ids=[0, 1, 90, 91]))
    trace, _ = read(file)
    assert [t.shared_tokens for t in trace.sessions[0].turns] == [None, 1024, 1546]
    found = statistics(trace)
    assert found["prompt_shrinks"] == found["shorter_than_history"] == 1 and found["input_tokens"] == 8704


def test_duplicates(write: Any, turn: Any) -> None:
    first, second = turn("a", 1, 0, 5, chat_id=0), turn("a", 2, 2, 9, chat_id=1)
    trace, reading = read(write("f.jsonl", first, second, first))
    assert trace.requests == 2 and reading.exact_duplicates == [3] and reading.rejected == 1
    file = write("f.jsonl", first, second, {**second, "input_length": 10})
    with pytest.raises(InputError, match=r"f\.jsonl:3: the same request as line 2 .* neither is known to be right"):
        read(file)
    trace, reading = read(file, lenient=True)
    assert trace.sessions[0].turns[1].input_tokens == 9 and reading.conflicts == [(2, 3)] and reading.rejected == 1


def test_the_same_turn_twice_without_chat_ids(write: Any, turn: Any) -> None:
    with pytest.raises(InputError, match="the same request as line 1"):
        read(write("f.jsonl", turn("a", 1, 0, 5), turn("a", 1, 3, 7)))


@pytest.mark.parametrize(("scale", "unit"), [(1, "seconds since 1970"), (1000, "milliseconds since 1970"), (10**6, "microseconds since 1970"), (10**9, "nanoseconds since 1970")])
def test_absolute_stamps(write: Any, turn: Any, scale: int, unit: str) -> None:
    file = write("f.jsonl", turn("a", 1, 1_747_000_000 * scale, 5), turn("a", 2, 1_747_000_002 * scale + scale // 2, 9))
    trace, reading = read(file)
    assert [t.arrival_s for t in trace.sessions[0].turns] == [0.0, 2.5 if scale > 1 else 2.0]
    assert unit in reading.notes()[0]


def test_nested_and_unknown_fields(write: Any, turn: Any) -> None:
    file = write("f.jsonl", turn("a", 1, 0, 5, meta={"x": [1]}, note=7), turn("a", 2, 2, 9, meta=[1], hash_ids=[[1, 2]]), turn("a", 3, 4, 9, hash_ids=[True]))
    with pytest.raises(InputError, match=r":2: column hash_ids: expected a list of whole numbers"):
        read(file)
    assert lines_of(read(file, lenient=True)[1]) == [2, 3]


def test_lengths(write: Any, turn: Any) -> None:
    file = write("f.jsonl", turn("a", 1, 0, 512.0, 1e4), turn("a", 2, 2, "1536", "24"), turn("a", 3, 4, 1700.5), turn("a", 4, 6, True), turn("a", 5, 8, -3),
                 turn("a", 6, 9, "many"), turn("a", 7, 10, None), turn("a", 8, 11, 2**40), turn("a", 9, float("nan"), 7))
    trace, reading = read(file, lenient=True)
    assert [(t.input_tokens, t.output_tokens) for t in trace.sessions[0].turns] == [(512, 10000), (1536, 24)]
    assert lines_of(reading) == [3, 4, 5, 6, 7, 8, 9]
    assert reading.quoted_numbers == 2 and reading.first_quoted_line == 2 and any("in quotes" in n for n in reading.notes())


def test_hash_counts(write: Any, turn: Any) -> None:
    file = write("f.jsonl", turn("a", 1, 0, 1536, hash_ids=[1, 2, 3]), turn("a", 2, 1, 1537, hash_ids=[1, 2, 3, 4]), turn("a", 3, 2, 2047, hash_ids=[1, 2, 3]),
                 turn("a", 4, 3, 20, hash_ids=[1, 9]), turn("a", 5, 4, 4096, hash_ids=[1, 2]))
    with pytest.raises(InputError, match=r":4: column hash_ids: 2 ids are too many for 20 tokens in blocks of 512: expected 1 \(or 0\)"):
        read(file)
    _, reading = read(file, lenient=True)
    assert reading.hash_counts == {"ceil": 2, "floor": 1, "too_many": 1, "too_few": 1} and lines_of(reading) == [4, 5]


def test_missing_hash_ids_are_unknown(write: Any, turn: Any) -> None:
    file = write("f.jsonl", turn("a", 1, 0, 512, hash_ids=[1]), turn("a", 2, 2, 1024), turn("a", 3, 4, 1536, hash_ids=None), turn("a", 4, 6, 2048, hash_ids=[]),
                 turn("a", 5, 8, 2560, hash_ids=[1, 2, 3, 4, 5]), turn("a", 6, 9, 3072, hash_ids=[1, 2, 3, 4, 5, 6]))
    trace, _ = read(file)
    assert [t.shared_tokens for t in trace.sessions[0].turns] == [None, None, None, None, None, 2570]
    assert [t.hash_ids is None for t in trace.sessions[0].turns] == [False, True, True, True, False, False]
    assert statistics(trace)["without_hash_ids"] == 3 and statistics(trace)["shared_unknown"] == 4


def test_negative_and_equal_stamps(write: Any, turn: Any) -> None:
    file = write("f.jsonl", turn("a", 3, 0.0, 30), turn("a", 1, -3.0, 10), turn("b", 1, -3.0, 10), turn("a", 2, 0.0, 20))
    trace, reading = read(file)
    assert [(t.arrival_s, t.gap_s, t.input_tokens) for t in trace.sessions[0].turns] == [(0.0, None, 10), (3.0, 3.0, 20), (3.0, 0.0, 30)]
    assert any("not in order of time" in n for n in reading.notes())


def test_turn_numbers_against_time(write: Any, turn: Any) -> None:
    trace, reading = read(write("f.jsonl", turn("a", 2, 0.0, 10), turn("a", 1, 5.0, 20)))
    assert [t.input_tokens for t in trace.sessions[0].turns] == [10, 20]
    assert reading.assembly is not None and reading.assembly.turn_numbers_against_time == 1


def test_forks(write: Any) -> None:
    def row(chat: int, parent: int, at: float) -> dict[str, Any]:
        return {"chat_id": chat, "parent_chat_id": parent, "timestamp": at, "input_length": 32, "output_length": 1, "hash_ids": [1, 2]}

    trace, reading = read(write("f.jsonl", row(1, -1, 0.0), row(4, 2, 9.0), row(2, 1, 3.0), row(3, 2, 8.5), row(7, -1, 1.0)))
    assert {s.id: [t.gap_s for t in s.turns] for s in trace.sessions} == {"1": [None, 3.0, 5.5, 6.0], "7": [None]}
    assert reading.assembly is not None and reading.assembly.forks == 1


def test_session_ids(write: Any, turn: Any) -> None:
    file = write("f.jsonl", turn("007", 1, 0, 5), turn(7, 1, 0.1, 5), turn("7", 2, 2, 9), turn(None, 1, 3, 5), turn("", 1, 3, 5), turn("  ", 1, 3, 5), turn(True, 1, 3, 5),
                 {k: v for k, v in turn("x", 1, 3, 5).items() if k != "session_id"})
    trace, reading = read(file, lenient=True)
    assert {s.id: len(s.turns) for s in trace.sessions} == {"007": 1, "7": 2} and lines_of(reading) == [4, 5, 6, 7, 8]


def test_no_follow_up_turns(write: Any, turn: Any) -> None:
    found = statistics(read(write("f.jsonl", turn("a", 1, 0, 5), turn("b", 1, 1, 5)))[0])
    assert found["gaps"] == 0 and set(found["gap_s"].values()) == {None} and found["idle_share"] is None


def test_zero_outputs_stay(write: Any, turn: Any) -> None:
    trace, _ = read(write("f.jsonl", turn("a", 1, 0, 5, 0), turn("a", 2, 1, 9, 3)))
    assert trace.requests == 2 and statistics(trace)["zero_outputs"] == 1


def test_over_context_and_long_gaps(write: Any, turn: Any) -> None:
    found = statistics(read(write("f.jsonl", turn("a", 1, 0, 32_760, 8), turn("a", 2, 77_611.0, 262_140, 20)))[0])
    assert found["over_context"] == {"32768": 1, "131072": 1, "262144": 1}
    assert found["gap_s"]["max"] == 77_611.0 and found["replay_s"] == {"1": 77_611.0, "10": 7_761.1}


def test_azure_keeps_100_ns(write: Any) -> None:
    trace, _ = read(write("a.csv", b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.9999998,5,1\r\n2023-11-16 23:59:59.9999999,6,0\r\n2023-11-17 00:00:00.0000000,7,1"))
    assert [s.turns[0].arrival_s for s in trace.sessions] == [0.0, 1e-7, 2e-7] and [s.turns[0].input_tokens for s in trace.sessions] == [5, 6, 7]


def test_csv_rows_of_another_width(write: Any) -> None:
    file = write("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 23:59:59,5,1", "2023-11-16 23:59:59,5", "yesterday,5,1")
    with pytest.raises(InputError, match=r"a\.csv:3: expected 3 values"):
        read(file)
    assert lines_of(read(file, lenient=True)[1]) == [3, 4]


def test_csv_with_a_field_beyond_reason(write: Any) -> None:
    with pytest.raises(InputError, match="neither JSON nor CSV"):
        read(write("a.csv", "x" * 200_000))
    with pytest.raises(InputError, match=r"a\.csv:2: not valid CSV"):
        read(write("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens", "x" * 200_000))


@pytest.mark.parametrize("content", [b"", b"\n \n", b"{}\n", b"[]", b"TIMESTAMP,ContextTokens,GeneratedTokens\n", b"\x00\x01\x02"])
def test_nothing_to_read(write: Any, content: bytes) -> None:
    with pytest.raises(InputError):
        read(write("f.jsonl", content), lenient=True)


def test_a_field_that_is_too_deep(write: Any, turn: Any) -> None:
    deep = json.dumps(turn("a", 2, 1, 9))[:-1] + ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}"
    with pytest.raises(InputError, match=r"f\.jsonl:2: not valid JSON"):
        read(write("f.jsonl", turn("a", 1, 0, 5), deep))


# ../shared/data/odd -----------------------------------------------------------------------------------------------------

CASES = list(csv.DictReader((ODD / "index.csv").read_text(encoding="utf-8").splitlines())) if ODD.is_dir() else []
no_folder = pytest.mark.skipif(not CASES, reason="../shared/data/odd is not here")


def over_context(trace: Trace) -> Any:
    return statistics(trace)["over_context"]


def turn_of(trace: Trace, session: int, turn: int) -> Any:
    return trace.sessions[session].turns[turn]


def shared_blocks(trace: Trace, session: int, turn: int) -> int:
    a, b = turn_of(trace, session, turn - 1).hash_ids, turn_of(trace, session, turn).hash_ids
    return next(k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)


def physical_rows(file: Path) -> list[int]:
    return [n for n, line in enumerate(file.read_text().split("\n"), 1) if line.strip()]


# How a figure of `expected` is found in what was read: (trace, reading) -> the figure.
FIGURES: dict[str, Any] = {
    "rows": lambda t, r: t.requests,
    "rows_or_error": lambda t, r: t.requests,
    "zero_output_rows": lambda t, r: statistics(t)["zero_outputs"],
    "diff_row3_row2_ns": lambda t, r: round((turn_of(t, 2, 0).arrival_s - turn_of(t, 1, 0).arrival_s) * 1e9),
    "record_lines": lambda t, r: physical_rows(Path(r.file)),
    "decreases": lambda t, r: statistics(t)["prompt_shrinks"],
    "sum_input": lambda t, r: statistics(t)["input_tokens"],
    "sum_output": lambda t, r: statistics(t)["output_tokens"],
    "sum_input_ok": lambda t, r: statistics(t)["input_tokens"],
    "shared_blocks_turn5": lambda t, r: shared_blocks(t, 0, 4),
    "rejected_lines": lambda t, r: lines_of(r),
    "exact_duplicates": lambda t, r: len(r.exact_duplicates),
    "conflicts": lambda t, r: len(r.conflicts),
    "conflict_lines": lambda t, r: list(r.conflicts[0]),
    "offsets_s": lambda t, r: sorted(x.arrival_s for s in t.sessions for x in s.turns),
    "offsets": lambda t, r: sorted(x.arrival_s for s in t.sessions for x in s.turns),
    "gaps_sorted_s": lambda t, r: gaps(t),
    "gaps_sorted": lambda t, r: gaps(t),
    "gaps": lambda t, r: [x.gap_s for s in t.sessions for x in s.turns if x.turn],
    "policy_line": lambda t, r: r.first_quoted_line,
    "ceil": lambda t, r: r.hash_counts["ceil"],
    "floor": lambda t, r: r.hash_counts["floor"],
    "too_many_lines": lambda t, r: [x.line for x in r.rejections if "too many" in x.problem],
    "too_few_lines": lambda t, r: [x.line for x in r.rejections if "too few" in x.problem],
    "over_context": lambda t, r: statistics(t)["over_context"],
    "max_input": lambda t, r: max(s.peak_input for s in t.sessions),
    "max_gap": lambda t, r: statistics(t)["gap_s"]["max"],
    "p50_gap": lambda t, r: statistics(t)["gap_s"]["p50"],
    "n_gaps": lambda t, r: statistics(t)["gaps"],
    "rows_with_usable_hash_ids": lambda t, r: t.requests - statistics(t)["without_hash_ids"],
    "rows_without": lambda t, r: statistics(t)["without_hash_ids"],
    "span_s": lambda t, r: statistics(t)["span_s"],
    "sessions": lambda t, r: {s.id: len(s.turns) for s in t.sessions},
    "gaps_by_chat": lambda t, r: gaps(t),
    "forks": lambda t, r: r.assembly.forks,
    "turns_per_session": lambda t, r: {s.id: len(s.turns) for s in t.sessions},
    "rows_without_id": lambda t, r: len(r.rejections),
    "chain_intact": lambda t, r: [len(s.turns) for s in t.sessions] == [4, 3],
}
# Two figures are lists of chats, and chats have no column in a trace: compared as what they become there.
BECOMES = {"sessions": lambda chats: {root: len(members) for root, members in chats.items()}, "gaps_by_chat": lambda by_chat: sorted(by_chat.values())}


@no_folder
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["file"])
def test_shared_case(case: dict[str, str]) -> None:
    file, expected = ODD / case["file"], json.loads(case["expected"])
    if case["verdict"] == "reject-file":
        for lenient in (False, True):
            with pytest.raises(InputError, match="cut off"):
                read(file, lenient=lenient)
        return
    rejected, dropped = int(case["rows_rejected"]), expected.get("exact_duplicates", 0)
    if rejected > dropped:
        with pytest.raises(InputError) as strict:
            read(file)
        bad = expected.get("rejected_lines") or expected.get("conflict_lines", [])[1:] or expected.get("too_many_lines") or [5]
        assert strict.value.line == bad[0] and "--lenient" in str(strict.value)
        trace, reading = read(file, lenient=True)
    else:
        trace, reading = read(file)
    assert (reading.rows, reading.rejected) == (int(case["rows_ok"]), rejected)
    if case["sessions"]:
        assert len(trace.sessions) == int(case["sessions"])
    for figure, value in expected.items():
        wanted = BECOMES.get(figure, lambda v: v)(value)
        assert FIGURES[figure](trace, reading) == wanted, figure


@no_folder
def test_shared_out_of_order_is_the_sorted_file(tmp_path: Path) -> None:
    lines = (ODD / "out_of_order_rows.jsonl").read_text().splitlines()
    file = tmp_path / "out_of_order_rows.jsonl"
    file.write_text("\n".join(sorted(lines, key=lambda line: json.loads(line)["timestamp"])))
    assert read(file)[0] == read(ODD / "out_of_order_rows.jsonl")[0]


@no_folder
def test_shared_missing_ids_share_an_unknown_part() -> None:
    trace, _ = read(ODD / "missing_hash_ids.jsonl")
    assert [t.shared_tokens for t in trace.sessions[0].turns] == [None] * 4
    assert [t.shared_tokens for t in trace.sessions[1].turns] == [None, None, 1532]
