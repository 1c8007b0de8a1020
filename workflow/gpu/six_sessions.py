"""Six sessions of five turns on running servers with the plugin: a direct turn must compute only what was appended.

    python workflow/gpu/six_sessions.py --prefill URL PORT --decode URL [--unified URL] [--first 2000] [--append 400] [--answer 64]

PORT is P's bootstrap port. With --unified the tokens of every turn are compared with that server's (worth something only where the model
depends on its history; in half precision a few may differ, so the share is printed). One JSON line a turn, a summary last; exit status 1
where a direct turn computed more than its append, a turn failed, or KV is still held in the end.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

LIMIT_S = 120.0
SESSIONS, TURNS = 6, 5


def post(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(url + path, json=body, timeout=LIMIT_S)
    if answer.status_code != 200:
        raise RuntimeError(f"{url}{path}: HTTP {answer.status_code} {answer.text[:300]}")
    return dict(answer.json())


def generate(url: str, prompt: list[int], answer: int, **more: Any) -> dict[str, Any]:
    return post(url, "/generate", {"input_ids": prompt, "sampling_params": {"max_new_tokens": answer, "temperature": 0, "ignore_eos": True}, **more})


def fresh(key: str, count: int) -> list[int]:
    draw = random.Random(key)
    return [draw.randrange(100, 1000) for _ in range(count)]


def session(name: str, at: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    history: list[int] = []
    for k in range(TURNS):
        new = at.append if k else at.first
        prompt = history + fresh(f"{name}:{k}", new)
        asked = post(at.decode, "/admit_direct_append", {"session": name, "appended_tokens": new, "history_tokens": len(history),
                                                         "output_reserve_tokens": at.answer}) if k else {}  # fmt: skip
        began = time.monotonic()
        named = {"routing_key": name, "rid": f"{name}-{k}"}
        if asked.get("can_admit"):
            answer = generate(at.decode, prompt, at.answer, bootstrap_host="direct", **named)
        else:
            url, port = at.prefill
            room = {"bootstrap_host": "127.0.0.1", "bootstrap_port": int(port), "bootstrap_room": random.getrandbits(62)}
            with ThreadPoolExecutor(2) as both:
                sides = [both.submit(generate, to, prompt, at.answer, **named, **room) for to in (url, at.decode)]
                answer = [side.result() for side in sides][1]
        row = {"session": name, "turn": k, "path": "seed" if not k else "direct" if asked.get("can_admit") else "fallback", "history": len(history),
               "cached": answer["meta_info"]["cached_tokens"], "reason": asked.get("reason"), "took_s": round(time.monotonic() - began, 4)}  # fmt: skip
        if at.unified:
            whole = generate(at.unified, prompt, at.answer)["output_ids"]
            row["equal_tokens"] = sum(a == b for a, b in zip(whole, answer["output_ids"], strict=True))
        rows.append(row)
        history = prompt + answer["output_ids"]
    return rows


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--prefill", nargs=2, required=True)
    options.add_argument("--decode", required=True)
    options.add_argument("--unified")
    for name, default in (("first", 2000), ("append", 400), ("answer", 64)):
        options.add_argument(f"--{name}", type=int, default=default)
    at = options.parse_args()
    names = [f"six-{k}" for k in range(SESSIONS)]
    with ThreadPoolExecutor(SESSIONS) as all_of_them:
        rows = [row for found in all_of_them.map(lambda name: session(name, at), names) for row in found]
    for row in rows:
        print(json.dumps(row))
    closed = [post(at.decode, "/close_direct_session", {"session": name}) for name in names]
    direct = [r for r in rows if r["path"] == "direct"]
    page = 64  # at most a page of the history may be computed again
    lost = [r for r in direct if r["cached"] < r["history"] - page]
    held = closed[-1]["held_tokens"]
    print(json.dumps({"turns": len(rows), "direct": len(direct), "slots_lost": len(lost), "held_tokens": held,
                      "equal_tokens": sum(r.get("equal_tokens", 0) for r in rows), "tokens": at.answer * len(rows)}))  # fmt: skip
    return int(bool(lost) or held != 0 or not direct)


if __name__ == "__main__":
    sys.exit(main())
