"""How much does the replay's client cost, and how punctual is it? Beside a plain asyncio and an aiohttp client of the same load, and other tools.

    python benchmarks/client.py [--full] [--rounds 3] [--sglang PYTHON] [--aiperf AIPERF] [--tokenizer FOLDER] [--write docs/benchmarks.md]

Every client talks to the same mock server (benchmarks/load/mock_server.py), whose clock judges them: when a request was complete, when its answer
ended. Ours is the whole command `apd replay`, with its plan, checks and records; the references only send and read (benchmarks/load/reference.py).
CPU is user + system of the client's processes; marginal = (a run of many requests - a run of 20) / their difference. Other work may share
the machine, so compare rows of one table, never figures of two. --sglang takes a Python that has SGLang's bench_serving, --aiperf its executable.
Exit status 1 where a goal that a busy machine cannot spoil is missed: start-up, memory, order of turns.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from apd_replay.cluster.ports import free_ports
from apd_replay.trace import table
from apd_replay.trace.model import Session, Trace, Turn

HERE = Path(__file__).parent
ROOT = HERE.parent
FIRST_ROW = 1000  # row i asks for FIRST_ROW + i tokens, which names it to the server
CHUNKS = 16
MOST_BLOCKS = 100  # of 512 tokens in a turn
LIMIT_S = 300
SAMPLE_S = 0.2
BEGIN, END = "<!-- client: begin -->", "<!-- client: end -->"


@dataclass(frozen=True)
class Load:
    """`rows`: (session, seconds from the start or from the answer before, prompt tokens, row number)."""

    name: str
    rows: list[tuple[str, float, int, int]]
    in_flight: int  # 0: no limit
    first_ms: float = 20.0  # the server's time to the first event, and between two
    step_ms: float = 5.0

    @property
    def sessions(self) -> list[list[tuple[str, float, int, int]]]:
        return [list(turns) for _, turns in groupby(self.rows, key=lambda r: r[0])]


def closed(count: int) -> Load:
    return Load(f"closed_{count}", [(f"s{k}", 0.0, 1000, k) for k in range(count)], 32, 0.0, 0.0)


def poisson(rate: float, span_s: float) -> Load:
    draw, t, rows = random.Random(rate), 0.0, []
    while (t := t + draw.expovariate(rate)) < span_s:
        rows.append((f"s{len(rows)}", t, 1000, len(rows)))
    return Load(f"open_{rate:g}", rows, 0)


def growing(sessions: int = 30, turns: int = 10) -> Load:
    """Prompts of 8,000 to 27,800 tokens: bodies of 32 to 111 KB."""
    return Load("growing", [(f"s{s}", 0.15 * s if k == 0 else 0.2, 8000 + 2200 * k, s * turns + k) for s in range(sessions) for k in range(turns)], 0)


def many_sessions(sessions: int, rate: float) -> Load:
    """All of them are open before the first has its second turn."""
    gap_s = sessions / rate + 2.0
    return Load(f"sessions_{sessions}", [(f"s{s}", s / rate if k == 0 else gap_s, 200 + 60 * k, 2 * s + k) for s in range(sessions) for k in range(2)], 0, 5.0, 1.0)


@dataclass
class Outcome:
    """`late`: arrival - due, ms, for each first turn; `own_late`: what the client itself says; `gap_error`: ms, for each later turn;
    `body_kb`: mean size of what arrived."""

    cpu_s: float
    wall_s: float
    rss_mb: float
    served: int
    rate: float
    load1: float
    body_kb: float
    late: list[float] = field(default_factory=list)
    own_late: list[float] = field(default_factory=list)
    absolute: bool = False
    gap_error: list[float] = field(default_factory=list)
    early: int = 0  # turns that came before their predecessor's end


class ClientFailed(Exception):
    """A client that did not carry its load out."""


Command = Callable[[Load, str, Path], tuple[list[str], dict[str, str]]]


def ours(load: Load, url: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    config = folder / "config"
    shutil.copytree(ROOT / "config", config)
    (config / "clusters/mock.yaml").write_text("workers: 1\n")
    experiment = {"engine": "sglang", "cluster": "mock", "policy": "round_robin", "concurrency": load.in_flight or 100_000, "start_spread_s": 0,
                  "trace": "mock", "sglang": {"external": {"workers": [url]}}}  # fmt: skip
    (config / "experiments/one.yaml").write_text(yaml.safe_dump({"experiments": {"x": experiment}}))
    sessions = []
    for turns in load.sessions:
        at, made = 0.0, []
        for k, (name, wait_s, tokens, row) in enumerate(turns):
            at += wait_s
            made.append(Turn(name, k, at, wait_s if k else None, "think" if k else None, tokens, FIRST_ROW + row))
        sessions.append(Session(turns[0][0], tuple(made)))
    table.write(Trace("mock", "0" * 64, tuple(sessions)), folder / "trace.parquet")
    return [sys.executable, "-m", "apd_replay", "replay", "x@sglang-mock", "--replicate", "1", "--matrix", "one", "--config", str(config / "config.yaml"),
            "--trace", str(folder / "trace.parquet"), "--out", str(folder / "run")], {}  # fmt: skip


def reference(kind: str) -> Command:
    def command(load: Load, url: str, folder: Path) -> tuple[list[str], dict[str, str]]:
        (folder / "load.json").write_text(json.dumps({"rows": load.rows}))
        return [sys.executable, str(HERE / "load/reference.py"), kind, str(folder / "load.json"), url, str(load.in_flight)], {}

    return command


def _mooncake(load: Load, folder: Path) -> str:
    """The load as a Mooncake trace. Where it has sessions, AIPerf's form: what a turn adds, and how long it waits for the answer before."""
    lines = []
    for turns in load.sessions:
        before = 0
        for k, (name, wait_s, tokens, row) in enumerate(turns):
            line: dict[str, Any] = {"delay" if k else "timestamp": round(wait_s * 1000), "input_length": tokens, "output_length": FIRST_ROW + row, "hash_ids": [2 * row, 2 * row + 1]}
            if len(turns) > 1:
                added = tokens - before
                blocks = range(MOST_BLOCKS * row, MOST_BLOCKS * row - (-added // 512))
                line |= {"session_id": name, "input_length": added, "hash_ids": list(blocks)}
            lines.append(json.dumps(line))
            before = tokens
    (folder / "load.jsonl").write_text("\n".join(lines) + "\n")
    return str(folder / "load.jsonl")


def sglang(python: str, tokenizer: Path) -> Command:
    def command(load: Load, url: str, folder: Path) -> tuple[list[str], dict[str, str]]:
        limit = ["--max-concurrency", str(load.in_flight)] if load.in_flight else []
        return [python, "-m", "sglang.bench_serving", "--backend", "sglang", "--base-url", url, "--dataset-name", "mooncake", "--dataset-path", _mooncake(load, folder),
                "--num-prompts", str(len(load.rows)), "--use-trace-timestamps", "--mooncake-num-rounds", "1", "--model", "mock",
                "--tokenizer", str(tokenizer), "--warmup-requests", "0", "--disable-tqdm",
                "--output-file", str(folder / "out.jsonl"), *limit], {"HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1"}  # fmt: skip

    return command


def aiperf(executable: str, tokenizer: Path) -> Command:
    def command(load: Load, url: str, folder: Path) -> tuple[list[str], dict[str, str]]:
        hub, commit = folder / "hf/hub/models--apd--tok", "0" * 39 + "1"  # it takes a hub's name, not a path
        (hub / "refs").mkdir(parents=True)
        (hub / "refs/main").write_text(commit)
        shutil.copytree(tokenizer, hub / "snapshots" / commit)
        pace = ["--no-fixed-schedule", "--ignore-trace-delays", "--concurrency", str(load.in_flight), "--request-count", str(len(load.rows))] if load.in_flight else ["--fixed-schedule"]
        return [executable, "profile", "-m", "mock", "--url", url, "--endpoint-type", "chat", "--streaming", "--input-file", _mooncake(load, folder),
                "--custom-dataset-type", "mooncake_trace", "--tokenizer", "apd/tok", "--artifact-dir", str(folder / "out"), "--ui", "none",
                "--no-gpu-telemetry", "--no-server-metrics", *pace], {"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}  # fmt: skip

    return command


def measure(command: Command, load: Load) -> Outcome:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([sys.executable, str(HERE / "load/mock_server.py"), str(port), str(CHUNKS), str(load.first_ms), str(load.step_ms)], stdout=subprocess.PIPE)
    assert server.stdout is not None
    server.stdout.readline()
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            argv, more = command(load, url, folder)
            load1 = os.getloadavg()[0]
            with open(folder / "stdout", "w+") as out, open(folder / "stderr", "w+") as error:
                began = time.monotonic()
                process = subprocess.Popen(argv, env={**os.environ, **more}, cwd=folder, stdout=out, stderr=error, start_new_session=True)
                peak = _Peak(process.pid)
                try:
                    _, status, usage = os.wait4(process.pid, 0)
                finally:
                    peak.stop()
                wall = time.monotonic() - began
                process.returncode = os.waitstatus_to_exitcode(status)
                if process.returncode:
                    raise ClientFailed(f"{argv[0]} ended with {process.returncode}: {Path(folder / 'stderr').read_text()[-2000:]} {Path(folder / 'stdout').read_text()[-1000:]}")
            rows = json.load(urllib.request.urlopen(f"{url}/rows"))
            return _judged(load, folder, rows, usage.ru_utime + usage.ru_stime, wall, peak.mb, load1)
    finally:
        server.terminate()
        server.wait()


class _Peak:
    """Memory of a process and its children: the sum of their own peaks, the largest seen; ends a client that runs too long.
    (The kernel's figure for a child that has ended counts what it shared with us before it became another program.)"""

    def __init__(self, pid: int) -> None:
        self.mb, self._pid, self._ended = 0.0, pid, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not self._ended.wait(SAMPLE_S):
            self.mb = max(self.mb, self._now())
            if time.monotonic() > deadline:
                os.killpg(self._pid, signal.SIGKILL)
                return

    def _now(self) -> float:
        total, left = 0.0, [self._pid]
        while left:
            pid = left.pop()
            try:
                said = Path(f"/proc/{pid}/status").read_text()
                left += [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
            except OSError:
                continue
            total += sum(int(line.split()[1]) for line in said.splitlines() if line.startswith("VmHWM"))
        return total * 1024 / 1e6

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()


def _judged(load: Load, folder: Path, rows: list[list[Any]], cpu_s: float, wall_s: float, rss_mb: float, load1: float) -> Outcome:
    by_row = {row: (arrived, ended) for row, arrived, ended, _, _ in rows if row >= 0}
    body_kb = statistics.mean(size for row, _, _, size, _ in rows if row >= 0) / 1000 if by_row else 0.0
    if len(by_row) != len(load.rows):
        raise ClientFailed(f"{load.name}: {len(by_row)} of {len(load.rows)} requests arrived")
    span = max(e for _, e in by_row.values()) - min(a for a, _ in by_row.values())
    out = Outcome(cpu_s, wall_s, rss_mb, len(by_row), len(by_row) / span if span else 0.0, load1, body_kb)
    said = (folder / "stdout").read_text().splitlines()
    t0 = json.loads(said[0])["t0"] if said and said[0].startswith('{"t0"') else None
    for turns in load.sessions:
        for k, (_, wait_s, _, row) in enumerate(turns):
            if k == 0:
                out.late.append((by_row[row][0] - (t0 or 0.0) - wait_s) * 1000)
            else:
                gap = by_row[row][0] - by_row[turns[k - 1][3]][1]
                out.early += gap < 0
                out.gap_error.append((gap - wait_s) * 1000)
    if t0 is None:
        least = min(out.late)
        out.late = [late - least for late in out.late]
    else:
        out.absolute = True
    own = folder / "run/lateness.jsonl"
    if own.exists():
        out.own_late = [json.loads(line)["lateness_s"] * 1000 for line in own.read_text().splitlines()]
    return out


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def three(values: list[float]) -> str:
    return " / ".join(f"{quantile(values, q):.1f}" for q in (0.5, 0.99, 1.0)) if values else "-"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=1)
    options.add_argument("--real-time", action="store_true", help="clients and server alike go before all other work of the machine (root only)")
    options.add_argument("--full", action="store_true", help="the whole load; without it a tenth, in a minute or two")
    options.add_argument("--sglang", metavar="PYTHON")
    options.add_argument("--aiperf", metavar="AIPERF")
    options.add_argument("--tokenizer", type=Path, help="folder of a tokenizer, for the two (benchmarks/load/tokenizer.py makes one)")
    options.add_argument("--write", type=Path)
    given = options.parse_args()
    if given.real_time:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    tools: dict[str, Command] = {"apd replay": ours, "plain asyncio": reference("raw"), "aiohttp": reference("aiohttp")}
    if given.sglang:
        tools["SGLang bench_serving"] = sglang(given.sglang, given.tokenizer)
    if given.aiperf:
        tools["AIPerf"] = aiperf(given.aiperf, given.tokenizer)
    part = 1 if given.full else 10
    loads = [closed(20), closed(2000 if given.full else 1000), poisson(50, 20 / part), poisson(500, 10 / part), growing(30 // part), many_sessions(10_000 // part, 500)]
    able = {loads[4].name: {*list(tools)[:3], "AIPerf"}, loads[5].name: {*list(tools)[:3]}}  # bench_serving has no sessions; AIPerf draws all prompts first
    found: dict[tuple[str, str], list[Outcome]] = {}
    failed: set[str] = set()  # left out from there on
    for _ in range(given.rounds):
        for load in loads:
            for tool, command in tools.items():
                if tool not in failed and tool in able.get(load.name, tools):
                    try:
                        outcome = measure(command, load)
                    except ClientFailed as failure:
                        print(f"{tool}, {load.name}: {failure}", file=sys.stderr)
                        failed.add(tool)
                        continue
                    found.setdefault((tool, load.name), []).append(outcome)
                    print(json.dumps({"tool": tool, "load": load.name, "cpu_s": round(outcome.cpu_s, 2), "wall_s": round(outcome.wall_s, 1), "rss_mb": round(outcome.rss_mb),
                                      "rate": round(outcome.rate, 1), "late": three(outcome.late), "own_late": three(outcome.own_late), "gap_error": three(outcome.gap_error),
                                      "early": outcome.early, "load1": outcome.load1}), flush=True)  # fmt: skip
    if not_ours := failed & set(list(tools)[:3]):
        sys.exit(f"no table without {', '.join(not_ours)}")
    reached = goals(found, loads)
    page = tables(found, list(tools), loads, given.rounds) + "\n" + "\n".join(
        ["**Goals.**", "", "| what | measured | goal | met |", "| --- | --- | --- | --- |",
         *(f"| {g.what} | {g.measured:.2f} | at most {g.most:g} | {'yes' if g.met else 'no'} |" for g in reached)]) + "\n"  # fmt: skip
    print(page)
    if given.write:
        text = given.write.read_text() if given.write.exists() else f"{BEGIN}\n{END}\n"
        head, _, rest = text.partition(BEGIN)
        given.write.write_text(head + BEGIN + "\n" + page + END + rest.partition(END)[2])
    if missed := [g.what for g in reached if g.sure and not g.met]:
        sys.exit(f"missed: {'; '.join(missed)}")


@dataclass(frozen=True)
class Goal:
    """`sure`: a busy machine cannot spoil it."""

    what: str
    measured: float
    most: float
    sure: bool

    @property
    def met(self) -> bool:
        return self.measured <= self.most


def middle(runs: list[Outcome], value: Callable[[Outcome], float]) -> float:
    return statistics.median(map(value, runs))


def marginal(found: dict[tuple[str, str], list[Outcome]], tool: str, few: Load, many: Load) -> float:
    """CPU seconds of 1,000 more requests."""
    more = middle(found[tool, many.name], lambda o: o.cpu_s) - middle(found[tool, few.name], lambda o: o.cpu_s)
    return 1000 * more / (len(many.rows) - len(few.rows))


def goals(found: dict[tuple[str, str], list[Outcome]], loads: list[Load]) -> list[Goal]:
    few, many, slow, _, growth, sessions = loads
    mine = {load.name: found["apd replay", load.name] for load in loads}
    ratio = marginal(found, "apd replay", few, many) / marginal(found, "aiohttp", few, many)
    late, gaps = ([v for o in mine[load.name] for v in values(o)] for load, values in ((slow, lambda o: o.own_late), (growth, lambda o: o.gap_error)))
    return [
        Goal("marginal CPU, times aiohttp's", ratio, 2.0, False),
        Goal("start-up, CPU s", middle(mine[few.name], lambda o: o.cpu_s), 2.0, True),
        Goal(f"memory with {len(sessions.sessions):,} sessions open, MB", middle(mine[sessions.name], lambda o: o.rss_mb), 150.0, True),
        Goal("lateness at 50 requests a second, P99, ms", quantile(late, 0.99), 5.0, False),
        Goal("error of gaps with bodies up to 111 KB, P99, ms", quantile(gaps, 0.99), 10.0, False),
        Goal("turns before their predecessor's end", sum(o.early for runs in mine.values() for o in runs), 0.0, True),
    ]


def tables(found: dict[tuple[str, str], list[Outcome]], tools: list[str], loads: list[Load], rounds: int) -> str:
    few, many, slow, fast, growth, sessions = loads
    load1 = [o.load1 for runs in found.values() for o in runs]

    def pooled(tool: str, load: Load, values: Callable[[Outcome], list[float]]) -> list[float]:
        return [v for o in found[tool, load.name] for v in values(o)]

    floor = marginal(found, "aiohttp", few, many)
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    out = [f"{when}, {os.cpu_count()} cores, load average {min(load1):.1f} to {max(load1):.1f} when a run began{', clients and server with real-time priority' if os.sched_getscheduler(0) == os.SCHED_RR else ''}, Python {sys.version.split()[0]}, {rounds} round(s): "
           "medians over the rounds, quantiles over all their requests. Written by `python benchmarks/client.py`.", "",
           f"**Cost.** {len(many.rows):,} streamed requests of {CHUNKS} events, {many.in_flight} in flight, a server that answers at once.", "",
           "| client | marginal CPU s per 1,000 requests | x aiohttp | start-up CPU s | requests a second | peak memory MB | body KB |", "| --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for tool in (t for t in tools if (t, many.name) in found):
        cost = marginal(found, tool, few, many)
        out.append(f"| {tool} | {cost:.2f} | {cost / floor:.2f} | {middle(found[tool, few.name], lambda o: o.cpu_s):.2f} | {middle(found[tool, many.name], lambda o: o.rate):,.0f} | {middle(found[tool, many.name], lambda o: o.rss_mb):.0f} | {middle(found[tool, many.name], lambda o: o.body_kb):.1f} |")
    for load, what in ((slow, "50 requests a second"), (fast, "500 requests a second")):
        out += ["", f"**Punctuality, {what}** (Poisson, {len(load.rows):,} requests). Milliseconds, P50 / P99 / max.", "",
                "| client | arrival - due, by the server's clock | due to written, by the client's own | CPU s |", "| --- | --- | --- | --- |"]  # fmt: skip
        for tool in (t for t in tools if (t, load.name) in found):
            anchor = " (absolute)" if found[tool, load.name][0].absolute else " (after the least late)"
            out.append(f"| {tool} | {three(pooled(tool, load, lambda o: o.late))}{anchor} | {three(pooled(tool, load, lambda o: o.own_late))} | {middle(found[tool, load.name], lambda o: o.cpu_s):.1f} |")
    out += ["", f"**Gaps between turns** ({len(growth.sessions)} sessions x 10 turns, bodies of 32 to 111 KB, gaps of 200 ms). Error = (arrival - end of the answer before) - gap.", "",
            "| client | error, ms, P50 / P99 / max | turns before their predecessor's end | CPU s | mean body KB |", "| --- | --- | --- | --- | --- |"]  # fmt: skip
    out += [f"| {tool} | {three(pooled(tool, growth, lambda o: o.gap_error))} | {sum(o.early for o in found[tool, growth.name])} of {sum(len(o.gap_error) for o in found[tool, growth.name])} "
            f"| {middle(found[tool, growth.name], lambda o: o.cpu_s):.1f} | {middle(found[tool, growth.name], lambda o: o.body_kb):.0f} |" for tool in tools if (tool, growth.name) in found]  # fmt: skip
    out += ["", f"**{len(sessions.sessions):,} sessions open at once** (500 turns a second, two turns each).", "",
            "| client | peak memory MB | CPU s per 1,000 requests | gap error, ms, P50 / P99 / max |", "| --- | --- | --- | --- |"]  # fmt: skip
    out += [f"| {tool} | {middle(found[tool, sessions.name], lambda o: o.rss_mb):.0f} | {1000 * middle(found[tool, sessions.name], lambda o: o.cpu_s) / len(sessions.rows):.2f} | {three(pooled(tool, sessions, lambda o: o.gap_error))} |"
            for tool in tools[:3]]  # fmt: skip
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    main()
