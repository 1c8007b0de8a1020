"""How fast is the simulator? Requests per CPU second of one core, rows and worker logs included, beside a floor taken in the same run.

    python benchmarks/simulator.py [--mooncake conversation_trace.jsonl] [--scale 1000000] [--rounds 3]

The floor is what no event-driven simulator that writes the same output can do without: as many pushes to and pops from a heap as the
run had events, the same rows through json.dumps, and the same log lines written. One JSON line a case: rate, floor, ratio, peak memory.
Timings are CPU seconds (user + system), because other work may share the machine; of several rounds the fastest counts.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from apd_replay import configuration
from apd_replay.configuration import Experiment
from apd_replay.replay.core import PlannedSession
from apd_replay.replay.plan import Gaps, Requests
from apd_replay.sim import clock, driver
from apd_replay.sim.prefixes import SharedHeads
from apd_replay.trace import load
from apd_replay.trace.model import Trace, Turn

CONFIG = Path(__file__).parents[1] / "config/config.yaml"


def cpu_s(work: Callable[[], object]) -> float:
    before = time.process_time()
    work()
    return time.process_time() - before


def count_events(run: Callable[[], object]) -> int:
    """Events of one run."""
    seen = 0
    at = clock.Clock.at

    def counting(self: clock.Clock, *arguments: Any) -> None:
        nonlocal seen
        seen += 1
        at(self, *arguments)

    clock.Clock.at = counting  # type: ignore[method-assign]
    try:
        run()
    finally:
        clock.Clock.at = at  # type: ignore[method-assign]
    return seen


def floor(out: Path, events: int) -> Callable[[], object]:
    """The same events, rows and log lines without a simulation."""
    rows = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    lines = [line for log in sorted((out / "logs").iterdir()) for line in log.read_text().splitlines(keepends=True)]

    def work() -> None:
        heap: list[tuple[float, int, int]] = []
        for k in range(events):
            heapq.heappush(heap, ((k * 7919) % 1000 * 1.0, 0, k))
            if len(heap) > 200:
                heapq.heappop(heap)
        with tempfile.TemporaryFile("w") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
            for start in range(0, len(lines), 4096):
                file.write("".join(lines[start : start + 4096]))

    return work


def digest(out: Path) -> str:
    """Of every file of a run directory."""
    whole = hashlib.sha256()
    for file in sorted(p for p in out.rglob("*") if p.is_file()):
        whole.update(file.relative_to(out).as_posix().encode() + file.read_bytes())
    return whole.hexdigest()


def case(name: str, experiment: Experiment, trace: Trace, rounds: int, folder: Path) -> None:
    out = folder / name
    results: list[str] = []

    def run() -> None:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        driver.run(experiment, trace, 1, out)

    events = count_events(run)
    bare = floor(out, events)
    seconds, floors = [], []
    for _ in range(rounds):
        seconds.append(cpu_s(run))
        floors.append(cpu_s(bare))
        results.append(digest(out))
    tokens = sum(t.output_tokens for s in trace.sessions for t in s.turns)
    report(name, trace.requests, min(seconds), events=events, floor_requests_per_s=round(trace.requests / min(floors)), times_floor=round(min(seconds) / min(floors), 1),
           output_tokens_per_s=round(tokens / min(seconds)), same_bytes=len(set(results)) == 1)  # fmt: skip


def report(name: str, requests: int, seconds: float, **more: Any) -> None:
    status = Path("/proc/self/status").read_text()  # ru_maxrss would begin with the parent's peak
    peak = int(status.split("VmHWM:")[1].split()[0]) // 1024
    print(json.dumps({"case": name, "requests": requests, "cpu_s": round(seconds, 3), "requests_per_s": round(requests / seconds), **more, "peak_mb": peak}), flush=True)


def made(requests: int) -> Iterator[PlannedSession]:
    """Sessions of 20 turns, one every 2 s, each made when it begins."""
    for k in range(requests // 20):
        name = f"s{k}"
        turns = [Turn(name, t, 0.0, 1.0 if t else None, None, 1000 + 300 * t, 50, 1000 + 300 * t - 250 if t else None) for t in range(20)]
        yield PlannedSession(name, 2.0 * k, Requests(turns, Gaps(None, 1.0)))


def scale(requests: int) -> None:
    """One run of so many requests in this process: for its memory to be its own, the caller starts a fresh one."""
    experiment = configuration.load(CONFIG).experiments["E0"]
    with tempfile.TemporaryDirectory() as folder:
        seconds = cpu_s(lambda: driver.play(experiment, made(requests), SharedHeads(), None, 1, Path(folder), {"trace": "made", "trace_digest": ""}))
    report(f"scale-{requests}", requests, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mooncake", type=Path, help="the 12,031-request Mooncake conversation trace")
    parser.add_argument("--scale", type=int, default=0, help="also 4,000 requests and then ten times more, up to this number")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one-scale", type=int, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.one_scale:
        scale(a.one_scale)
        return
    experiments = configuration.load(CONFIG).experiments
    with tempfile.TemporaryDirectory() as folder:
        trace = load.load("swebench-52", config_dir=CONFIG.parent)
        for name in ("E0", "E6"):
            case(name, experiments[name], trace, a.rounds, Path(folder))
        if a.mooncake:
            base = experiments["E0"]
            chat = {**base.settings, "policy": "round_robin", "resident": False, "time_scale": 1, "start_spread_s": 0, "concurrency": 4096, "request_timeout_s": 1e6}
            case("mooncake-2p6d-round_robin", Experiment("mooncake", chat, base.cluster, base.hardware), load.load(a.mooncake), a.rounds, Path(folder))
    count = 4000
    while count <= a.scale:
        subprocess.run([sys.executable, __file__, "--one-scale", str(count)], check=True)
        count = min(count * 10, a.scale) if count < a.scale else a.scale + 1


if __name__ == "__main__":
    main()
