"""The page in a real browser: it opens from a file without a network, says nothing on its console, and shows its figures."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no headless Chromium on this machine")]


def browse(folder: Path, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    """One headless visit, with every name resolved to nowhere; the browser and its children end with it."""
    command = [
        str(CHROMIUM),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--enable-logging=stderr",
        "--v=0",
        f"--user-data-dir={folder / 'profile'}",
        *options,
        url,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, err = process.communicate(timeout=90)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def console(visit: subprocess.CompletedProcess[str]) -> list[str]:
    """What pages said: `[...:INFO:CONSOLE(3)] "text", source: ...` (the browser's own complaints are not the page's)."""
    return re.findall(r"CONSOLE[:(]\d+\)?\]? (.*)", visit.stderr)


def test_the_console_of_a_page_is_seen(tmp_path: Path) -> None:
    """So that silence means something."""
    (tmp_path / "loud.html").write_text("<script>console.error('broken thing')</script>")
    assert any("broken thing" in said for said in console(browse(tmp_path, (tmp_path / "loud.html").as_uri(), "--dump-dom")))


def test_the_report_opens_without_a_word_on_the_console(results: Path, tmp_path: Path) -> None:
    visit = browse(tmp_path, (results / "report/report.html").as_uri(), "--dump-dom")
    assert visit.returncode == 0
    assert console(visit) == []
    assert "</html>" in visit.stdout and visit.stdout.count("<figure") > 20


def test_the_style_and_the_script_pass_the_pages_own_policy(results: Path, tmp_path: Path) -> None:
    """A policy that does not match the inline style or script would leave the page naked, with a word on the console."""
    text = (results / "report/report.html").read_text(encoding="utf-8")
    broken = tmp_path / "broken.html"
    broken.write_text(text.replace("border-collapse", "border-collapse ", 1), encoding="utf-8")
    assert any("Content Security Policy" in said for said in console(browse(tmp_path, broken.as_uri(), "--dump-dom")))


def test_a_click_sorts_a_table(results: Path, tmp_path: Path) -> None:
    """The page's own script, run on a copy that clicks by itself (and allows that script in its policy)."""
    text = (results / "report/report.html").read_text(encoding="utf-8")
    text = re.sub(r"<meta http-equiv[^>]*>", "", text)
    clicker = """<script>const t=[...document.querySelectorAll("table")].find(t=>t.caption&&t.caption.textContent.startsWith("Every run"));
      const h=[...t.querySelectorAll("th")].findIndex(h=>h.textContent.startsWith("latency mean"));t.querySelectorAll("th")[h].click();
      document.title="sorted "+[...t.tBodies[0].rows].map(r=>r.cells[h].dataset.v).join(" ");</script></body>"""
    copy = tmp_path / "copy.html"
    copy.write_text(text.replace("</body>", clicker), encoding="utf-8")
    visit = browse(tmp_path, copy.as_uri(), "--dump-dom")
    values = [float(v) for v in re.search(r"<title>sorted ([^<]*)</title>", visit.stdout)[1].split()]  # type: ignore[index]
    assert len(values) == 3 and values == sorted(values)


def test_the_pages_of_one_engine_print(results: Path, tmp_path: Path) -> None:
    browse(tmp_path, (results / "report/report.html").as_uri(), "--no-pdf-header-footer", f"--print-to-pdf={tmp_path / 'report.pdf'}")
    pages = (tmp_path / "report.pdf").read_bytes().count(b"/Type /Page\n")
    assert pages > 5


def test_it_is_a_picture(results: Path, tmp_path: Path) -> None:
    """Not a blank page: the first screen has ink of the verdicts' colours."""
    shot = tmp_path / "shot.png"
    browse(tmp_path, (results / "report/report.html").as_uri(), "--window-size=1280,1000", "--hide-scrollbars", f"--screenshot={shot}")
    colors = png_colors(shot)
    assert (0x0B, 0x6B, 0x4F) in colors and (0xFF, 0xFF, 0xFF) in colors


def png_colors(file: Path) -> set[tuple[int, int, int]]:
    """All colours of an 8-bit RGB or RGBA picture."""
    import struct
    import zlib

    data, at, packed = file.read_bytes(), 8, b""
    width = height = channels = 0
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, _, color = struct.unpack(">IIBB", body[:10])
            channels = {2: 3, 6: 4}[color]
        elif kind == b"IDAT":
            packed += body
        at += 12 + length
    raw, stride = zlib.decompress(packed), width * channels
    before, found = bytearray(stride), set()
    for y in range(height):
        kind, row = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1 : (y + 1) * (stride + 1)])
        for i in range(stride if kind else 0):
            a, b, c = row[i - channels] if i >= channels else 0, before[i], before[i - channels] if i >= channels else 0
            p = a + b - c
            paeth = a if abs(p - a) <= abs(p - b) and abs(p - a) <= abs(p - c) else b if abs(p - b) <= abs(p - c) else c
            row[i] = (row[i] + (0, a, b, (a + b) // 2, paeth)[kind]) & 255
        found |= {(row[i], row[i + 1], row[i + 2]) for i in range(0, stride, channels)}
        before = row
    return found
