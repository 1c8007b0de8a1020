"""The kit: cut into parts, carried, checked, unpacked."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from apd_replay.cli import apd
from apd_replay.cluster.kit import build, device_code, install, own, pack, wheels
from apd_replay.errors import RunError

pytestmark = pytest.mark.skipif(not (shutil.which("xz") and shutil.which("tar")), reason="needs tar and xz")

PART_BYTES = 20_000
FACTS = {"name": "a kit", "expects": ["json"], "versions": {}}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with text, bytes that do not compress, a hidden folder, an executable and a link."""
    site = tmp_path / "site"
    noise = random.Random(1)
    for name, content in {
        "package/module.py": b"answer = 42\n" * 50,
        "package/library.so": noise.randbytes(45_000),
        ".hidden.libs/other.so": noise.randbytes(9_000),
        "tool": b"#!/bin/sh\n",
    }.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(content)
    (site / "tool").chmod(0o755)
    (site / "package" / "library.so.1").symlink_to("library.so")
    return site


@pytest.fixture
def parts(site: Path, tmp_path: Path) -> Path:
    archives = []
    for name, members in (("a", ["package"]), ("b", [".hidden.libs", "tool"])):
        archives.append(tmp_path / f"{name}.tar.xz")
        pack.archive(site, members, archives[-1])
    pack.cut(archives, PART_BYTES, tmp_path / "parts", FACTS)
    return tmp_path / "parts"


def contents(folder: Path) -> dict[str, tuple[str, bool]]:
    return {
        str(p.relative_to(folder)): (hashlib.sha256(p.read_bytes()).hexdigest(), os.access(p, os.X_OK))
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def test_parts_are_as_few_as_the_size_allows_and_their_checksums_are_those_of_the_files(parts: Path) -> None:
    manifest = json.loads((parts / "kit.json").read_text())
    sizes = [p["bytes"] for p in manifest["parts"]]
    assert len(sizes) == 3 and sizes[:-1] == [PART_BYTES] * 2 and 0 < sizes[-1] <= PART_BYTES
    assert sum(sizes) == sum(a["bytes"] for a in manifest["archives"])
    for part in manifest["parts"]:
        assert part["sha256"] == hashlib.sha256((parts / part["name"]).read_bytes()).hexdigest()


def test_what_is_unpacked_is_what_was_packed(site: Path, parts: Path, tmp_path: Path) -> None:
    install.install([parts], tmp_path / "there")
    assert contents(tmp_path / "there") == contents(site)
    assert (tmp_path / "there" / "package" / "library.so.1").is_symlink()


def test_the_installer_runs_alone_and_takes_parts_from_several_folders(site: Path, parts: Path, tmp_path: Path) -> None:
    for number, file in enumerate(sorted(parts.iterdir())):
        place = tmp_path / f"upload{number % 2}"
        place.mkdir(exist_ok=True)
        file.rename(place / file.name)
    script = next(tmp_path.glob("upload*/install.py"))
    bare = {"PATH": os.environ["PATH"]}
    run = subprocess.run([sys.executable, "-I", script, tmp_path / "upload0", tmp_path / "upload1", "--to", tmp_path / "there"], capture_output=True, text=True, env=bare)
    assert run.returncode == 0, run.stderr
    assert contents(tmp_path / "there") == contents(site)


def test_without_xz_python_unpacks_the_same(site: Path, parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.shutil, "which", lambda tool: None)
    manifest, files = install.verified([parts])
    offset = 0
    (tmp_path / "there").mkdir()
    for archive in manifest["archives"]:
        install.unpack(files, offset, archive["bytes"], tmp_path / "there")
        offset += archive["bytes"]
    assert contents(tmp_path / "there") == contents(site)


@pytest.mark.parametrize("path", ["/usr/bin:/bin", ""])
def test_libraries_that_the_host_has_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("PATH", path)
    folder = tmp_path / "syslibs"
    folder.mkdir()
    for name in ("libc.so.6", "libnobody.so.9"):
        (folder / name).write_bytes(b"")
    assert install.leave_out_libraries_that_are_here(folder) == ["libnobody.so.9"]
    assert [p.name for p in folder.iterdir()] == ["libnobody.so.9"]
    assert install.leave_out_libraries_that_are_here(tmp_path / "none") == []


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda parts: flip(parts / "part-01"), "part-01 has another checksum"),
        (lambda parts: (parts / "part-02").unlink(), "part-02 is missing"),
        (lambda parts: (parts / "part-00").write_bytes(b"short"), "part-00 has 5 bytes instead of 20000"),
        (lambda parts: (parts / "kit.json").write_text("{}"), "not a kit's manifest"),
        (lambda parts: (parts / "kit.json").unlink(), "no kit.json among the parts"),
    ],
)
def test_a_bad_kit_is_refused_and_nothing_is_unpacked(parts: Path, tmp_path: Path, harm, said: str) -> None:
    harm(parts)
    run = CliRunner().invoke(apd, ["kit", "install", str(parts), "--to", str(tmp_path / "there")])
    assert isinstance(run.exception, RunError) and said in str(run.exception)
    assert "\n" not in str(run.exception)
    assert not (tmp_path / "there").exists()


def test_a_folder_in_use_is_not_installed_over(parts: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").write_text("x")
    with pytest.raises(install.KitError, match="not empty"):
        install.install([parts], tmp_path / "there")
    assert (tmp_path / "there" / "mine").read_text() == "x"


def test_a_wheel_is_laid_out_without_what_is_dropped(tmp_path: Path) -> None:
    wheel = tmp_path / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("thing/core.py", "thing/tests/t.py", "thing/plugins/a.so", "thing/plugins/UCX.so", "thing-1.0.data/purelib/extra.py", "thing-1.0.data/data/big"):
            archive.writestr(name, name)
    wheels.lay_out(wheel, tmp_path / "site", ["thing/tests/*", "thing/plugins/*"], ["*UCX*"])
    assert set(contents(tmp_path / "site")) == {"thing/core.py", "thing/plugins/UCX.so", "extra.py"}


def test_a_wheel_cannot_write_outside_the_kit(tmp_path: Path) -> None:
    wheel = tmp_path / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("../elsewhere.py", "")
    with pytest.raises(RunError, match="outside the kit"):
        wheels.lay_out(wheel, tmp_path / "site")


def fatbin(payloads: list[tuple[int, bytes, bool]]) -> bytes:
    """An ELF file with one `.nv_fatbin` of one container: entries of (architecture, payload, compressed)."""
    body = b""
    for architecture, payload, compressed in payloads:
        head = struct.pack("<HHIQIIHHI", device_code.ELF_CODE, 0x101, 64, len(payload), 7 if compressed else 0, 0, 0, 0, architecture)
        head += bytes(40 - len(head)) + struct.pack("<QQQ", device_code.COMPRESSED if compressed else 0, 0, 99 if compressed else 0)
        body += head + payload
    section = struct.pack("<IHHQ", device_code.CONTAINER, 1, 16, len(body)) + body
    names = b"\0.shstrtab\0.nv_fatbin\0"
    table = 64 + len(section) + len(names)
    header = bytearray(64)
    header[:4] = b"\x7fELF"
    struct.pack_into("<Q", header, 0x28, table)
    struct.pack_into("<HH", header, 0x3C, 3, 1)

    def entry(name: int, offset: int, size: int) -> bytes:
        return struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, offset, size, 0, 0, 1, 0)

    return bytes(header) + section + names + entry(0, 0, 0) + entry(1, 64 + len(section), len(names)) + entry(11, 64, len(section))


def test_blanking_keeps_what_is_named_and_the_layout(tmp_path: Path) -> None:
    noise = random.Random(2)
    small = b"\x7fELF" + noise.randbytes(60)
    kept, gone, packed = b"\x7fELF" + noise.randbytes(996), b"\x7fELF" + noise.randbytes(496), noise.randbytes(400)
    source = tmp_path / "whole.so"
    source.write_bytes(fatbin([(90, kept, False), (90, gone, False), (100, packed, True), (90, small, False)]))
    device_code.blank(source, tmp_path / "blanked.so", hashlib.sha256(source.read_bytes()).hexdigest(), 90, {1})
    before, after = source.read_bytes(), (tmp_path / "blanked.so").read_bytes()
    entries = list(device_code.entries(after))
    assert len(after) == len(before) and [e.payload for e in entries] == [1000, 500, 400, 64]
    assert after[entries[0].code] == kept
    assert after[entries[1].code] == small + bytes(500 - 64) and after[entries[2].code] == small + bytes(400 - 64)
    assert struct.unpack_from("<Q", after, entries[2].at + 40) == (0,)


def test_an_unknown_library_is_not_blanked(tmp_path: Path) -> None:
    (tmp_path / "other.so").write_bytes(b"\x7fELF")
    with pytest.raises(RunError, match="checksum"):
        device_code.blank(tmp_path / "other.so", tmp_path / "out.so", "0" * 64, 90, {1})
    assert not (tmp_path / "out.so").exists()


def test_this_package_is_found_with_its_entry_points(tmp_path: Path) -> None:
    own.put(tmp_path)
    script = "import importlib.metadata as m; d = m.distribution('apd-replay'); print({p.name: p.value for p in d.entry_points}['apd'])"
    run = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, cwd="/", env={"PYTHONPATH": str(tmp_path)})
    assert run.stdout.strip() == "apd_replay.cli:main", run.stderr


def test_the_recipe_is_whole() -> None:
    plan = build.recipe(sglang="9.9")
    assert plan["packages"]["sglang"]["version"] == "9.9"
    assert all(isinstance(version, str) for version in plan["wheels"].values())
    for model in ("q06", "q30a3"):
        shape = json.loads((build.HERE / "models" / model / "config.json").read_text())
        assert shape["head_dim"] == 128 and shape["torch_dtype"] == "bfloat16", "the kept device code is for these alone"
