"""Wait until every server answers /health with 200.

    python wait_healthy.py SECONDS URL...        exit status 1 if one has not by then, saying which
"""

from __future__ import annotations

import sys
import time
import urllib.request


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


began, limit = time.monotonic(), float(sys.argv[1])
waiting = sys.argv[2:]
while waiting and time.monotonic() - began < limit:
    for url in [url for url in waiting if healthy(url)]:
        print(f"{url} answers after {time.monotonic() - began:.0f} s", flush=True)
        waiting.remove(url)
    time.sleep(0.5 if waiting else 0)
if waiting:
    sys.exit(f"no answer within {limit:g} s from {', '.join(waiting)}")
