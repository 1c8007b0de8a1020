"""Stands in for a server in the tests of starting and stopping: `fake_worker.py PORT MODE`, output to stdout.

ready: prints the marker, starts a child of its own and waits; die, refuse: prints lines and ends; deaf: as ready, but ignores SIGTERM; wild: binds every interface.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time

port, mode = int(sys.argv[1]), sys.argv[2]
if mode == "die":
    print("loading\nout of cheese", flush=True)
    sys.exit(3)
if mode == "refuse":
    print("apd_replay plugin: no such hook", *[f"  traceback {k}" for k in range(40)], sep="\n", flush=True)
    sys.exit(1)
if mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
listener = socket.create_server(("0.0.0.0" if mode == "wild" else "127.0.0.1", port))
child = subprocess.Popen([sys.executable, "-c", "import ctypes, time; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); time.sleep(600)"])  # as SGLang's own children do
print(f"child {child.pid}", flush=True)
print("The server is fired up and ready to roll!", flush=True)
time.sleep(600)
