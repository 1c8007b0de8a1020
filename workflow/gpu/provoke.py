"""Failures on purpose on one P/D pair over mooncake_tcp, one after the other: a full D and retraction, a send that fails, the latch, recovery, a killed D.

    python provoke.py --prefill URL BOOTSTRAP_PORT --decode URL --pool TOKENS --prompt TOKENS --decode-group PGID --seconds S

The servers' logs are the result. Prints one line a step: what was done, when (UTC), and how the requests ended.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx


def one(at: argparse.Namespace, prompt: int, answer: int, limit_s: float) -> str:
    """A request through P and D; how D's side ended."""
    body: dict[str, Any] = {"input_ids": [random.randrange(100, 1000) for _ in range(prompt)],
                            "sampling_params": {"max_new_tokens": answer, "temperature": 1.0, "ignore_eos": True},
                            "bootstrap_host": "127.0.0.1", "bootstrap_port": int(at.prefill[1]), "bootstrap_room": random.getrandbits(62)}  # fmt: skip
    with ThreadPoolExecutor(2) as both:
        sides = [both.submit(httpx.post, url + "/generate", json=body, timeout=limit_s) for url in (at.prefill[0], at.decode)]
        return ended(sides[1])


def ended(side: Future[httpx.Response]) -> str:
    try:
        answer = side.result()
    except httpx.HTTPError as error:
        return type(error).__name__
    try:
        reason = answer.json()["meta_info"]["finish_reason"]
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code}: {answer.text[:100]}"
    return "ok" if reason.get("type") != "abort" else str(reason.get("message"))[:100]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--prefill", nargs=2, required=True)
    options.add_argument("--decode", required=True)
    for name in ("pool", "prompt", "decode-group"):
        options.add_argument(f"--{name}", type=int, required=True)
    options.add_argument("--seconds", type=float, required=True)
    at = options.parse_args()
    end = time.monotonic() + at.seconds
    many = ThreadPoolExecutor(64)

    def left() -> float:
        return max(1.0, end - time.monotonic())

    def say(what: str, found: Any = "") -> None:
        print(f"{time.strftime('%T', time.gmtime())} {what} {json.dumps(found) if found else ''}", flush=True)

    def burst(count: int, prompt: int, answer: int, limit_s: float) -> list[Future[str]]:
        return [many.submit(one, at, prompt, answer, min(limit_s, left())) for _ in range(count)]

    def how(futures: list[Future[str]]) -> dict[str, int]:
        return dict(Counter(f.result() for f in futures))

    say("first request", how(burst(1, 64, 4, 20)))
    # More than the pool holds once the answers grow: preallocation waits, then running requests are retracted.
    long = burst(30, at.pool // 24, at.pool // 12, 18)
    say("30 requests that outgrow the pool", how(long))
    stopped = burst(12, at.prompt, 4, 25)
    time.sleep(0.5)
    os.killpg(at.decode_group, signal.SIGSTOP)
    say("D stopped with transfers on their way")
    time.sleep(min(14, left()))
    os.killpg(at.decode_group, signal.SIGCONT)
    say("D goes on", how(stopped))
    while left() > 14:
        outcome = how(burst(1, 64, 4, 5))
        say("a short request", outcome)
        if "ok" in outcome:
            break
        time.sleep(2)
    killed = burst(12, at.prompt, 4, 10)
    time.sleep(0.5)
    os.killpg(at.decode_group, signal.SIGKILL)
    say("D killed with transfers on their way", how(killed))
    say("after the kill", how(burst(2, 64, 4, 5)))
    many.shutdown(wait=False, cancel_futures=True)


if __name__ == "__main__":
    main()
