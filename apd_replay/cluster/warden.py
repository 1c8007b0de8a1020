"""Run as a script: kills process groups once whoever started it has died, in whatever way.

Lines on stdin: `+GROUP` to watch one, `-GROUP` to forget it. The end of stdin means that the other end is gone: every group that is
still watched is killed. The kernel's parent-death signal is not enough, because it reaches a server but not its children, and
SGLang's own tie themselves to their parent only after seconds of imports.
"""

from __future__ import annotations

import os
import signal
import sys
import time

LIMIT_S = 10.0


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    deadline = time.monotonic() + LIMIT_S
    while groups and time.monotonic() < deadline:
        for group in list(groups):
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                groups.discard(group)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
