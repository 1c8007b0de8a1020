"""The quick way and the line-by-line way agree on everything; a prefix gives a prefix; nothing raises."""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
from array import array
from pathlib import Path
from typing import Any

import log_lines as L
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apd_replay.logs import collect as collecting
from apd_replay.logs import parser as parsing
from apd_replay.logs import reading
from apd_replay.logs.collect import Log, collect, collect_all
from apd_replay.logs.run import summary

RAW = Path(__file__).parents[3] / "shared/data"
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

WHOLE = [line for _, line, _ in L.BATCHES] + [line for line, _, _ in L.EVENTS] + [*L.TRACEBACK, L.STATS, L.ACCESS, L.ROUTER, L.GLOG_TIMEOUT, L.SERVER_ARGS.format(mode="decode"),
         L.SERVER_ARGS_DICT.format(mode="prefill"), L.T, "", L.T + "nobody knows this one 17", (L.T + L.P_FAILED).rstrip(), "it might be dead"]  # fmt: skip


def rows(log: Log) -> dict[str, list[dict[str, Any]]]:
    return {name: sorted((row for batch in getattr(log, name).batches() for row in batch.to_pylist()), key=lambda r: (r["file"], r["line"], json.dumps(r))) for name in ("samples", "events", "stats")}


def everything(log: Log) -> Any:
    return rows(log), log.accounts, sorted(map(str, log.unknown)), log.role, log.first_stamp, log.last_stamp, log.served, log.entry_gaps


def varied(rng: random.Random, line: str) -> str:
    """The line with other numbers, at times odd ones."""
    out = []
    for char in line:
        if char.isdigit() and rng.random() < 0.3:
            char = str(rng.randint(0, 9))
            if rng.random() < 0.02:
                char += rng.choice(["x", "", "99999999", ".", ",", "\r", " "])
        out.append(char)
    return "".join(out)


@pytest.fixture(params=[1 << 10, 1 << 14, 1 << 20], ids=["1 KB blocks", "16 KB blocks", "1 MB blocks"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(reading, "BLOCK_BYTES", request.param)
    return int(request.param)


@pytest.mark.parametrize("seed", range(4))
def test_both_ways_agree_on_mixed_logs(seed: int, blocks: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    weights = [8] * len(L.BATCHES) + [1] * (len(WHOLE) - len(L.BATCHES))
    text = "\n".join(varied(rng, line) for line in rng.choices(WHOLE, weights, k=1500)) + rng.choice(["\n", ""])
    path = tmp_path / "x.log"
    path.write_text(text)
    assert everything(collect([path], fast=True)) == everything(collect([path], fast=False))


MESSAGES = [line for line, _, _ in L.EVENTS] + [L.STATS.removesuffix(", #retries=0"), L.STATS, L.ACCESS, L.GLOG_TIMEOUT, L.GLOG_TIMEOUT.replace("Sync batch data transfer timeout", "slices")]


@pytest.mark.parametrize("seed", range(3))
def test_both_ways_agree_on_messages(seed: int, blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are read many at a time once the role is told and the clocks have their evidence: both soon here."""
    monkeypatch.setattr(parsing, "EVIDENCE_ROWS", 5)
    rng = random.Random(seed)
    lines = [L.SERVER_ARGS.format(mode=rng.choice(["decode", "prefill"])), *rng.choices(MESSAGES, k=1000), *rng.choices([*MESSAGES, *WHOLE], k=600)]
    tags = ["] ", "] ", " TP0] ", " DP1 TP3] ", ".250 TP1] "]
    odd = ["s1-2", 's"1', "s[2", "s.cpp:1", "s\\x", "sü", "s\r", "s\x1b[0m"]
    path = tmp_path / "x.log"
    path.write_text("\n".join(varied(rng, line).replace("] ", rng.choice(tags), 1).replace("s1-2", rng.choice(odd)) for line in lines) + "\n", newline="\n")
    assert everything(collect([path], fast=True)) == everything(collect([path], fast=False))


def test_without_the_compiled_part_logs_are_read_line_by_line_and_a_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.log"
    path.write_text("\n".join(WHOLE * 20) + "\n")
    reference = everything(collect([path], fast=False))
    monkeypatch.setattr(collecting, "_FAST_FROM_BYTES", 0)
    assert not collect([path]).notices
    monkeypatch.delitem(sys.modules, "apd_replay.logs.fast", raising=False)
    monkeypatch.setitem(sys.modules, "apd_replay.logs._scan", None)
    log = collect([path])
    assert everything(log) == reference and len(log.notices) == 1 and "compile" in log.notices[0]
    assert summary([log, log], []).notices == log.notices


WIDEST = ["0", "007", "2147483647", "2147483648", "999999999999999", "1000000000000000", "9223372036854775807", "9223372036854775808", "18446744073709551617", "0.1234567890123", "123456789012345.5",
          "0.30", "1.", ".5", "1e5", "-1", "a1", "1a", "x" * 70 + "1", "", "[2"]  # fmt: skip


@pytest.mark.parametrize("line", [*(line for _, line, _ in L.BATCHES), *MESSAGES, L.ROUTER, L.T + "nobody knows 17 and 0f3a5b7c9d1e2f30"], ids=lambda line: line[22:40])
def test_both_ways_agree_on_what_a_column_just_holds_and_what_not(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "EVIDENCE_ROWS", 0)
    lines = [L.SERVER_ARGS.format(mode="decode"), line, line, line]
    for number in re.finditer(r"\d+(?:\.\d+)?", line):
        lines += [line[: number.start()] + value + line[number.end() :] for value in WIDEST]
    path = tmp_path / "x.log"
    path.write_text("\n".join(lines) + "\n")
    assert everything(collect([path], fast=True)) == everything(collect([path], fast=False))


def test_both_ways_agree_on_many_days_and_ranks(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    batch = L.BATCHES[1][1].removeprefix(L.T)
    days = [f"[2026-{month:02}-{day:02} 16:00:0{k}] {batch}" for month in range(1, 13) for day in range(1, 31) for k in range(3)]
    ranks = [f"[2026-05-05 16:00:03 DP{at % 7} TP{at}] {batch}" for at in range(700) for _ in range(3)]
    path.write_text("\n".join([*days, *ranks, *days[:9], *ranks[:9]]) + "\n")
    assert everything(collect([path], fast=True)) == everything(collect([path], fast=False))


def test_the_scanner_refuses_what_is_no_layout() -> None:
    scan = pytest.importorskip("apd_replay.logs._scan")
    head, end, hole = array("q", [0, 0, 8, -1, -1, -1, -1]), [0, 1, 4, 1, 1, 1, 0, 0], [0, 1, 0, 1, 19, 1, 1, 0]

    def add(steps: list[int], texts: list[int] = [], pieces: list[int] = [], size: int = 64) -> Any:  # noqa: B006
        records = (array("q", numbers).tobytes() for numbers in (steps, texts, pieces))
        return scan.Scanner().add_layout(b"x", head.tobytes(), *records, bytearray(size))

    assert add(end) == 0 and add([*hole, *end]) == 0
    for steps in ([], hole, [*end, *end], [0, 2, *end[2:]], [-1, *end[1:]], [*hole[:7], 40, *end], [*hole[:6], 9, 0, *end]):
        with pytest.raises(ValueError, match="not a layout"):
            add(steps)
    for texts, pieces in (([0, 0, 65, 0, 0], []), ([32, 0, 8, 0, 0], []), ([0, 36, 8, 0, 1], []), ([0, 36, 8, 0, 1], [-1, 1, 1]), ([0, 36, 8, 0, 1], [1, 0, 0])):
        with pytest.raises(ValueError, match="not a layout"):
            add([*hole, *end], texts, pieces)


@pytest.mark.parametrize("lines", [
    # found by a fuzzer: the last time is that of a line that is only counted, with a line without a time behind it
    [L.T + "start", L.ACCESS.replace("POST", "GET").replace("16:00:03", "15:59:59"), "[TP0] no time here"],
    # found by a fuzzer: a D's field in a prefill line decides what #prealloc-req is
    [L.BATCHES[5][1].rstrip(", ").replace("#inflight-req: 2", "pre-allocated usage: 0.00")] * 6,
    # found by a fuzzer: a number that is too long to vary stands in front of the room
    [L.T + L.D_FAILED.replace("rank=0 ", "rank=010344644715844964240") + "it might be dead"] * 6,
    # found by a fuzzer: the role that lines showed before the last launch is not the log's
    [*[L.BATCHES[3][1]] * 4, L.T + "server_args=cut"],
    # found by a fuzzer: a frame that names a role was only read as the reason of a failure above it
    [*[(L.T + L.P_FAILED).rstrip(), "    scheduler.event_loop_overlap_disagg_decode()"] * 2, "    scheduler.event_loop_overlap_disagg_decode()"],
])  # fmt: skip
def test_findings_of_the_fuzzer(lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("\n".join(lines) + "\n")
    assert everything(collect([path], fast=True)) == everything(collect([path], fast=False))


def test_the_quick_way_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast path that leaves its lines to the slow one would pass every comparison: count the lines that reach the log's parser."""
    seen: list[int] = []
    original = collecting.LogParser.line

    def counted(self: Any, raw: bytes, number: int, offset: int) -> Any:
        if self.file:  # not one that is asked what a line would mean
            seen.append(number)
        return original(self, raw, number, offset)

    monkeypatch.setattr(collecting.LogParser, "line", counted)
    monkeypatch.setattr(parsing, "EVIDENCE_ROWS", 0)
    events = [line for line, _, _ in L.EVENTS if "with exception" in line or "Decode transfer" not in line]
    kinds = [*(line for _, line, _ in L.BATCHES[1:]), *events, L.STATS, L.ACCESS, L.ROUTER, L.GLOG_TIMEOUT.replace("Sync batch data transfer timeout", "slices"), L.T + "nobody knows this one 17"]
    path = tmp_path / "x.log"
    path.write_text("\n".join([L.SERVER_ARGS.format(mode="decode"), *(line for line in kinds for _ in range(200))]) + "\n")
    log = collect([path], fast=True)
    assert log.samples.rows == 200 * (len(L.BATCHES) - 1) and log.events.rows == 200 * len(events)
    assert len(seen) <= 1 + 2 * len(kinds), [line for line in kinds if sum(number > 1 and kinds[(number - 2) // 200] == line for number in seen) > 2]

@pytest.mark.skipif(not (RAW / "sglang-gpu-runs").is_dir(), reason="the raw runs (../shared/data) are not here")
def test_both_ways_agree_on_the_raw_runs(blocks: int) -> None:
    files = sorted(RAW.glob("sglang-*-runs/**/*.log")) + sorted(RAW.glob("sglang-*-runs/**/*.log.gz"))
    for path in files[:: 3 if blocks > 1 << 18 else 17]:
        assert everything(collect([path], fast=True)) == everything(collect([path], fast=False)), path


LINES = st.lists(st.sampled_from(WHOLE) | st.text(max_size=60).map(lambda t: t.replace("\n", " ")), max_size=25)


@SETTINGS
@given(lines=LINES, keep=st.integers(0, 25))
@pytest.mark.parametrize("fast", [False, True])
def test_a_prefix_gives_a_prefix(lines: list[str], keep: int, fast: bool, tmp_path: Path) -> None:
    """Only the event that is still open at the cut (a traceback, a failure whose reason comes on the next line) may know less."""
    path = tmp_path / "x.log"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="\n")
    whole = rows(collect([path], fast=fast))
    path.write_text("".join(line + "\n" for line in lines[:keep]), encoding="utf-8", newline="\n")
    part = rows(collect([path], fast=fast))
    for name, found in part.items():
        reference = [row for row in whole[name] if row["line"] <= keep]
        assert len(found) == len(reference)
        differ = [(a, b) for a, b in zip(found, reference, strict=True) if a != b]
        for a, b in differ:
            assert name == "events" and (a["line"], a["offset"], a["room"]) == (b["line"], b["offset"], b["room"])
            assert a["kind"] == "exception" == b["kind"] or '"wrapped": true' in a["rest"]


@SETTINGS
@given(data=st.binary(max_size=400) | st.lists(st.binary(max_size=40) | st.sampled_from([line.encode() for line in WHOLE]), max_size=12).map(b"\n".join))
@pytest.mark.parametrize("fast", [False, True])
def test_no_bytes_raise_and_the_books_balance(data: bytes, fast: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"\n" + data if data[:2] == b"\x1f\x8b" else data)
    account = collect([path], fast=fast).accounts[0]
    read = path.read_bytes()
    assert account["lines"] == read.count(b"\n") + bool(read and not read.endswith(b"\n")) and account["bytes"] == len(read)
    assert account["lines"] == sum(account[k] for k in ("row_lines", "known_lines", "cut_lines", "unknown_lines", "over_long_lines"))


@SETTINGS
@given(lines=LINES)
def test_both_ways_agree_on_any_lines_that_come_again(lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("".join(line + "\n" for line in [*lines, *lines, *reversed(lines)]), encoding="utf-8", newline="\n")
    assert everything(collect([path], fast=True)) == everything(collect([path], fast=False))


@SETTINGS
@given(first=LINES, second=LINES)
def test_two_logs_do_not_disturb_each_other(first: list[str], second: list[str], tmp_path: Path) -> None:
    for name, lines in (("a.log", first), ("b.log", second)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="\n")
    alone = [everything(collect([tmp_path / name])) for name in ("a.log", "b.log")]
    together = collect_all([[tmp_path / "b.log"], [tmp_path / "a.log"]])
    assert [everything(log) for log in reversed(together)] == alone


def test_offsets_lead_to_the_line(blocks: int, tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("\n".join(WHOLE * 20) + "\n")
    content, lines = path.read_bytes(), path.read_bytes().split(b"\n")
    for found in rows(collect([path], fast=True)).values():
        for row in found:
            assert content[row["offset"] :].split(b"\n", 1)[0] == lines[row["line"] - 1]


@pytest.mark.parametrize("fast", [False, True])
def test_a_line_of_30_mb_is_counted_and_not_kept(fast: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    good = L.BATCHES[9][1].encode()
    path.write_bytes(good + b"\n" + L.T.encode() + b"Receive: obj=" + b"x" * (30 << 20) + b"\n" + good + b"\n")
    log = collect([path], fast=fast)
    account = log.accounts[0]
    assert (account["lines"], account["row_lines"], account["over_long_lines"]) == (3, 2, 1)
    assert [(r["line"], r["offset"]) for r in rows(log)["samples"]] == [(1, 0), (3, path.stat().st_size - len(good) - 1)]
    assert max(len(u["example"]) for u in log.unknown) <= 300


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("end", ["\n", ""])
def test_lines_around_over_long_ones_count_one_by_one(fast: bool, end: str, blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LINE_LIMIT", blocks)
    batch = L.BATCHES[9][1]
    lines = [batch, "x" * (3 * blocks), batch, L.T + "nobody knows", "y" * (4 * blocks), "z" * (2 * blocks), batch, "y" * (7 * blocks), batch, batch]
    path = tmp_path / "x.log"
    path.write_text("\n".join(lines) + end)
    log = collect([path], fast=fast)
    account = log.accounts[0]
    assert (account["lines"], account["row_lines"], account["unknown_lines"], account["bytes"], account["cut_last_line"]) == (len(lines), 5, 1, path.stat().st_size, not end)
    assert account["over_long_lines"] == 4 and [r["line"] for r in rows(log)["samples"]] == [1, 3, 7, 9, 10]
    assert all(path.read_bytes()[r["offset"] :].startswith(batch.encode()) for r in rows(log)["samples"])


def test_rotated_and_packed_files_are_one_log_in_order(tmp_path: Path) -> None:
    (tmp_path / "d.log.2.gz").write_bytes(gzip.compress((L.SERVER_ARGS.format(mode="decode") + "\n").encode()))
    (tmp_path / "d.log.1").write_text(L.BATCHES[1][1] + "\n")
    (tmp_path / "d.log").write_text(L.BATCHES[1][1] + "\n")
    groups = reading.logs_in_order(sorted(tmp_path.iterdir()))
    (log,) = collect_all(groups.values(), tmp_path)
    assert log.worker == "d" and [a["file"] for a in log.accounts] == ["d.log.2.gz", "d.log.1", "d.log"]
    assert [(r["file"], r["role"], r["launch"]) for r in rows(log)["samples"]] == [("d.log", "decode", 1), ("d.log.1", "decode", 1)]


def test_a_cut_archive_gives_what_it_has_and_says_so(tmp_path: Path) -> None:
    packed = gzip.compress("\n".join([L.BATCHES[1][1]] * 5000).encode())
    (tmp_path / "d.log.gz").write_bytes(packed[: len(packed) // 2])
    log = collect([tmp_path / "d.log.gz"])
    assert log.samples.rows > 0 and "ends too early" in log.notices[0]


def test_many_rows_go_through_a_file_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from apd_replay.logs import spool

    path = tmp_path / "x.log"
    path.write_text("\n".join(WHOLE * 50) + "\n")
    reference = everything(collect([path]))
    monkeypatch.setattr(spool, "MEMORY_BYTES", 1000)
    monkeypatch.setattr(reading, "BLOCK_BYTES", 1 << 12)
    log = collect([path])
    assert everything(log) == reference
    files = [log.samples._path, log.events._path]
    assert all(f is not None and f.exists() for f in files)
    log.close()
    assert not any(f is not None and f.exists() for f in files)
