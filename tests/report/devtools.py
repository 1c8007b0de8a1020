"""Headless Chromium over its DevTools protocol: what a page answers to expressions of a test."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
LIMIT_S = 90


def answers(profile: Path, url: str, *expressions: str) -> list[Any]:
    """Open `url`, with every name but this machine's address resolved to nowhere, and evaluate; a promise is waited for. The browser ends with it."""
    command = [
        str(CHROMIUM),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-first-run",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        f"--user-data-dir={profile}",
        "--remote-debugging-port=0",
        "about:blank",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "DevTools listening on " in line:
                return asyncio.run(asyncio.wait_for(_evaluated(line.split()[-1], url, expressions), LIMIT_S))
        raise AssertionError("Chromium ended before it listened")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


async def _evaluated(address: str, url: str, expressions: tuple[str, ...]) -> list[Any]:
    async with aiohttp.ClientSession() as client, client.ws_connect(address, max_msg_size=0) as socket:
        calls = iter(range(1, 1_000_000))

        async def call(method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
            number = next(calls)
            await socket.send_json({"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})})
            while (said := json.loads((await socket.receive()).data)).get("id") != number:
                pass  # an event
            assert "error" not in said, said["error"]
            result: dict[str, Any] = said["result"]
            return result

        target = await call("Target.createTarget", url=url)
        session = (await call("Target.attachToTarget", targetId=target["targetId"], flatten=True))["sessionId"]

        async def value(expression: str) -> Any:
            said = await call("Runtime.evaluate", session, expression=expression, awaitPromise=True, returnByValue=True)
            assert "exceptionDetails" not in said, said
            return said["result"].get("value")

        while not await value("document.readyState === 'complete' && location.protocol !== 'about:'"):
            await asyncio.sleep(0.05)
        return [await value(expression) for expression in expressions]
