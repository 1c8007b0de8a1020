"""How fast logs are read: CPU seconds of `apd parse` on a log of all line kinds, beside `grep -c` on the same file in the same run.

    python benchmarks/parse_logs.py [--gb 0.2] [--files 1] [--keep FOLDER]

Printed: MB per CPU-second (user + system, children included), the ratio to grep, wall time, peak memory, and whether the books balance.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

START = 1_777_996_800


def stamp(second: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(START + second))


def lines(rng: random.Random, second: int) -> list[str]:
    """About a hundred lines of a decode worker and of what else lands on the same stream, in the proportions of a busy run."""
    at, out = stamp(second), []
    for _ in range(60):
        usage = rng.random()
        out.append(f"[{at}] Decode batch, #running-req: {rng.randint(1, 64)}, #token: {int(usage * 98304)}, token usage: {usage:.2f}, pre-allocated usage: {usage / 5:.2f}, "
                   f"#prealloc-req: {rng.randint(0, 9)}, #transfer-req: {rng.randint(0, 14)}, #retracted-req: 0, cuda graph: {rng.random() < 0.9}, "
                   f"gen throughput (token/s): {rng.uniform(50, 9000):.2f}, #queue-req: {rng.randint(0, 3)}")
    for _ in range(14):
        out.append(f"[{at} DP{rng.randint(0, 1)} TP{rng.randint(0, 3)}] Prefill batch, #new-seq: {rng.randint(1, 3)}, #new-token: {rng.randint(50, 8192)}, #cached-token: {rng.randint(0, 60000)}, token usage: {rng.random():.2f}, "
                   f"#running-req: 0, #queue-req: {rng.randint(0, 9)}, #pending-token: {rng.randint(0, 90000)}, #bootstrap-req: {rng.randint(0, 5)}, #inflight-req: {rng.randint(0, 12)}, "
                   f"cuda graph: False, input throughput (token/s): {rng.uniform(100, 300000):.2f}")
    for _ in range(12):
        out.append(f'[{at}] INFO:     10.0.0.{rng.randint(1, 9)}:{rng.randint(20000, 60000)} - "POST /generate HTTP/1.1" 200 OK')
    for _ in range(3):
        room = rng.getrandbits(62)
        reason = rng.choice(("Decode instance could be dead, remote mooncake session 10.0.0.3:15102 is not alive", f"Failed to send kv chunk of {room} to 10.0.0.{rng.randint(1, 9)}:41002",
                             f"Request {room} timed out after 300.0s in KVPoll.WaitingForInput", "Aborted by AbortReq."))
        out.append(f"[{at}] Prefill transfer failed for request rank=0 req.rid='{session(rng)}' req.bootstrap_room={room} with exception KVTransferError(bootstrap_room={room}): {reason}")
    for _ in range(3):
        out.append(f"[{at}] ReqTimeStats(rid={rng.getrandbits(128):032x}, bootstrap_room={rng.getrandbits(62)}, input_len={rng.randint(100, 90000)}, cached_input_len=0, output_len=120, type=decode): "
                   f"bootstrap_duration=0.36ms, alloc_wait_duration={rng.random():.2f}ms, transfer_duration={rng.uniform(5, 900):.2f}ms, queue_duration=0.23ms, forward_duration=21.64ms, entry_time={START + second - 2}.720")
    out.append(f"[{at}] Session trim: evicted {rng.randint(1, 3)} idle sessions, {rng.randint(8000, 60000)} tokens freed")
    out.append(f"[{at}] Session {rng.choice(('opened', 'closed'))}: {session(rng)} (active={rng.randint(0, 50)})")
    out.append(f"[{at}] KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: {rng.randint(0, 9000)}, #new_token_ratio: 0.0980 -> 0.2747")
    out.append(f"I0505 {at[11:]}.{rng.randint(0, 999999):06d} 1014 transfer_engine_impl.cpp:214] submitted {rng.randint(1, 99)} slices")
    out.append(f"Capturing batches (bs={rng.randint(1, 64)} avail_mem=3.10 GB):  40%|####      | {rng.randint(1, 9)}/10 [00:01<00:02, 4.08it/s]\r")
    out.append(f"[{at}] A line that no rule knows, number {rng.randint(0, 10**9)}, id {rng.getrandbits(128):032x}")
    if rng.random() < 0.2:
        out += [f"[{at}] Scheduler hit an exception: Traceback (most recent call last):", '  File "/sglang/srt/managers/scheduler.py", line 4639, in run_scheduler_process',
                "    scheduler.run_event_loop()", "ValueError: pool memory leak detected! [full] total=1, available=0, session_held=1"]
    out += rare(rng, at)
    rng.shuffle(out)
    return out


def session(rng: random.Random) -> str:
    return rng.choice((f"s{rng.randint(0, 999):03d}-7", f"{rng.getrandbits(128):032x}", f"agent_{rng.randint(0, 99)}", rng.choice(("alpha", "beta", "gamma", "delta"))))


def rare(rng: random.Random, at: str) -> list[str]:
    """Lines that only the line-by-line parser can read, one or two in a hundred: requests with their prompts, wrapped failures, colours, other scripts, bytes that are no UTF-8."""
    room, words = rng.getrandbits(62), " ".join(rng.choice(("the", "file", "is", "not", "there", "so", "make", "it")) for _ in range(120))
    meta = f"'id': '{rng.getrandbits(128):032x}', 'finish_reason': {{'type': 'length', 'length': 16}}, 'prompt_tokens': {rng.randint(9, 9999)}, 'completion_tokens': 16, 'cached_tokens': 0, 'e2e_latency': {rng.random():.6f}"
    kinds = (
        [f"[{at}] Receive: obj=GenerateReqInput(text='{words}', sampling_params={{'max_new_tokens': 16}}, bootstrap_room={room})"],
        [f"[{at}] Finish: obj=GenerateReqInput(text='{words}', bootstrap_room={room}), out={{'text': ' {words}', 'meta_info': {{{meta}}}}}"],
        ['{"timestamp": "' + at + '", "event": "request.finished", "rid": "' + f'{rng.getrandbits(128):032x}", "out": {{"meta_info": {{"prompt_tokens": {rng.randint(9, 9999)}, "completion_tokens": 16, "e2e_latency": {rng.random()}}}}}}}'],
        [f"[{at}] Decode transfer failed for request rank=0 decode_req.req.rid='{session(rng)}' decode_req.req.bootstrap_room={room} with exception KVTransferError(bootstrap_room={room}):",
         "Failed to get kvcache from prefill instance, it might be dead"],
        [f"\x1b[2m[{at}]\x1b[0m INFO:     10.0.0.1:{rng.randint(20000, 60000)} - \"GET /health HTTP/1.1\" 200 OK"],
        [f"[{at}] Session opened: \u4f1a\u8bdd-{rng.randint(0, 999)} (active={rng.randint(0, 50)})"],
        [f"[{at}] Session closed: \udcff\udcfe{rng.randint(0, 999)} (active={rng.randint(0, 50)})"],
        [f"I0505 {at[11:]}.{rng.randint(0, 999999):06d} 1014 transfer_engine_py.cpp:214] Sync batch data transfer timeout after 32000000000ns"],
        [f"[{at}] Session 10.0.0.3:{rng.randint(15000, 15009)} failed.", ""],
    )
    return [line for kind in kinds if rng.random() < 0.12 for line in kind]


def generate(path: Path, megabytes: float, seed: int) -> None:
    rng, size, second = random.Random(seed), 0, 0
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as handle:
        handle.write(f"[{stamp(0)}] server_args=ServerArgs(model_path='m', disaggregation_mode='decode', tp_size=1)\n")
        while size < megabytes * 1e6:
            size += handle.write("\n".join(lines(rng, second)) + "\n")
            second += 1


def measured(command: list[str]) -> tuple[float, float, float]:
    """CPU seconds, wall seconds and peak memory (MB) of a command and its children."""
    code = "import json,resource,subprocess,sys,time;t=time.monotonic();r=subprocess.run(sys.argv[1:],stdout=subprocess.PIPE);u=resource.getrusage(resource.RUSAGE_CHILDREN);print(json.dumps([u.ru_utime+u.ru_stime,time.monotonic()-t,u.ru_maxrss/1024,r.returncode]))"
    cpu, wall, memory, status = json.loads(subprocess.run([sys.executable, "-c", code, *command], check=True, capture_output=True, text=True).stdout)
    if status not in (0, 1):
        raise SystemExit(f"{command[0]} ended with status {status}")
    return cpu, wall, memory


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--gb", type=float, default=0.2)
    ask.add_argument("--files", type=int, default=1)
    ask.add_argument("--keep", type=Path)
    asked = ask.parse_args()
    with tempfile.TemporaryDirectory(prefix="apd-bench-") as scratch:
        folder = asked.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        logs = [folder / f"decode-{i}.log" for i in range(asked.files)]
        for seed, log in enumerate(logs):
            if not log.exists():
                generate(log, asked.gb * 1000 / asked.files, seed)
        megabytes = sum(log.stat().st_size for log in logs) / 1e6
        names = [str(log) for log in logs]
        floor = min(measured(["grep", "-c", "Decode batch", *names]) for _ in range(3))
        ours = min(measured([sys.executable, "-m", "apd_replay", "parse", *names, "--out", f"{scratch}/tables"]) for _ in range(2))
        print(f"{megabytes:.0f} MB in {len(logs)} file(s), {os.cpu_count()} cores")
        print(f"{'':12} {'MB/CPU-s':>9} {'CPU s':>7} {'wall s':>7} {'peak MB':>8}")
        for name, (cpu, wall, memory) in (("grep -c", floor), ("apd parse", ours)):
            print(f"{name:12} {megabytes / cpu:9.0f} {cpu:7.2f} {wall:7.2f} {memory:8.0f}")
        print(f"apd parse takes {ours[0] / floor[0]:.1f} times grep's CPU")
        books(Path(scratch) / "tables", logs)


def books(tables: Path, logs: list[Path]) -> None:
    """Rows + known + cut + unknown + over-long lines = lines, counted by somebody else."""
    import duckdb

    ask = duckdb.connect()
    found = ask.execute(f"select sum(lines), sum(row_lines + known_lines + cut_lines + unknown_lines + over_long_lines) from '{tables}/log_files/**/*.parquet'").fetchone()
    counted = sum(int(subprocess.run(["grep", "-c", "", str(log)], capture_output=True, text=True, check=True).stdout) for log in logs)
    samples = ask.execute(f"select count(*) from '{tables}/worker_samples/**/*.parquet'").fetchone()
    batch = sum(int(subprocess.run(["grep", "-c", " batch, ", str(log)], capture_output=True, text=True, check=True).stdout) for log in logs)
    assert found is not None and samples is not None
    print(f"lines: grep {counted}, ours {int(found[0])}, of them accounted for {int(found[1])}; batch lines: grep {batch}, rows {samples[0]}")
    if not (counted == int(found[0]) == int(found[1]) and batch == samples[0]):
        raise SystemExit("the books do not balance")


if __name__ == "__main__":
    main()
