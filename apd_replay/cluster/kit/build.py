"""Build a kit: wheels, pruning, kernels, this package, parts. Needs pip's registry, binutils, tar, xz and nvcc; no GPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from apd_replay import __version__
from apd_replay.cluster.kit import device_code, native, own, pack, wheels
from apd_replay.errors import RunError

HERE = Path(__file__).parent
TOOLS = {"readelf": "binutils", "strip": "binutils", "xz": "xz-utils", "tar": "tar", "ldd": "libc-bin"}

# What is packed together unpacks together: the largest groups first, so that the host's cores end at about the same time.
GROUPS = (
    ("kernels", ("sgl_kernel", "jitcache")),
    ("router", ("sglang_router",)),
    ("transfer", ("mooncake", "mooncake_transfer_engine_cuda13.libs", "nixl_cu13", "nixl_cu13.libs", ".nixl_cu13.mesonpy.libs", "syslibs")),
    ("sglang", ("sglang", "transformers", "flashinfer")),
)
REST = "packages"

ENVIRONMENT = """\
# The environment of every process that uses this kit: `. env.sh` from bash.
site=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
export LD_LIBRARY_PATH="$site/syslibs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PATH="$site/bin:$PATH"
export TVM_FFI_CACHE_DIR="$site/jitcache"
export SGLANG_HOST_IP=127.0.0.1
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
"""


def recipe(sglang: str | None = None) -> dict[str, Any]:
    """The recipe, with another version of SGLang where one is named (what else that version needs is the caller's to know)."""
    content: dict[str, Any] = yaml.safe_load((HERE / "recipe.yaml").read_text(encoding="utf-8"))
    if sglang:
        content["packages"]["sglang"]["version"] = sglang
    return content


def build(out: Path, work: Path, part_bytes: int, plan: Mapping[str, Any], say: Callable[[str], None], compiler: Path | None = None) -> list[Path]:
    """Build a kit of `plan` in `work` and write its parts to `out`; returns the files to carry.

    `compiler`: a Python with torch and tvm-ffi for the kernels; None makes one in `work`. Downloads in `work` are kept.
    """
    _check_tools(plan)
    started = time.monotonic()

    def step(text: str) -> None:
        say(f"[{time.monotonic() - started:4.0f} s] {text}")

    site, loaded = work / "site", work / "wheels"
    shutil.rmtree(site, ignore_errors=True)
    step("wheels")
    _wheels(plan, loaded, site)
    step("device code")
    _device_code(plan, loaded, site)
    step("kernels")
    _kernels(plan, work, site, compiler, say)
    step("shared objects")
    lacking = _native(plan, site)
    if lacking:
        say(f"  this machine lacks {', '.join(lacking)}: the host must have them")
    step("this package, models, environment")
    _extras(plan, site)
    step("packing")
    archives = _archives(site, work / "archives")
    for archive in archives:
        say(f"  {archive.name}: {archive.stat().st_size / 2**20:.1f} MiB")
    version = plan["packages"]["sglang"]["version"]
    facts = {"name": f"sglang-{version}-apd-{__version__}", "expects": plan["host"]["expects"], "versions": _pins(plan)}
    files = pack.cut(archives, part_bytes, out, facts)
    step("done")
    return files


def _check_tools(plan: Mapping[str, Any]) -> None:
    for tool, package in TOOLS.items():
        if not shutil.which(tool):
            raise RunError(f"{tool} is not on this machine: install {package}")
    if plan["kernels"]["sglang"] and not shutil.which("nvcc") and not Path("/usr/local/cuda/bin/nvcc").exists():
        raise RunError("nvcc is not on this machine: install CUDA's compiler, or build with --no-kernels (the host then compiles at its first start)")


def _pins(plan: Mapping[str, Any]) -> dict[str, str]:
    return {**plan["wheels"], **{name: package["version"] for name, package in plan["packages"].items()}}


def _wheels(plan: Mapping[str, Any], loaded: Path, site: Path) -> None:
    host = plan["host"]
    wheels.download(_pins(plan), host["python"], host["newest_glibc"], loaded)
    for name, version in plan["wheels"].items():
        wheels.lay_out(wheels.find(name, version, loaded), site)
    for name, package in plan["packages"].items():
        skipped = [*package.get("drop", []), plan["device_code"]["file"]]
        wheels.lay_out(wheels.find(name, package["version"], loaded), site, skipped, package.get("keep", []))


def _device_code(plan: Mapping[str, Any], loaded: Path, site: Path) -> None:
    blanked = plan["device_code"]
    whole = loaded / Path(blanked["file"]).name
    wheel = wheels.find("sglang-kernel", plan["packages"]["sglang-kernel"]["version"], loaded)
    with zipfile.ZipFile(wheel) as archive, archive.open(blanked["file"]) as source, whole.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 22)
    try:
        device_code.blank(whole, site / blanked["file"], blanked["sha256"], blanked["architecture"], set(blanked["kept"]))
    finally:
        whole.unlink()


def _kernels(plan: Mapping[str, Any], work: Path, site: Path, compiler: Path | None, say: Callable[[str], None]) -> None:
    kernels = plan["kernels"]
    if kernels["sglang"]:
        headers = work / "headers"
        for name, version in kernels["headers"].items():
            wheels.download({name: version}, plan["host"]["python"], plan["host"]["newest_glibc"], work / "wheels")
            with zipfile.ZipFile(wheels.find(name, version, work / "wheels")) as archive:
                archive.extractall(headers, [n for n in archive.namelist() if "/include/" in n])
        folders = [str(p.absolute()) for p in headers.rglob("include")]
        (work / "kernels.json").write_text(json.dumps({**kernels, "headers": folders}))
        command = [str(compiler or _compiler(work, kernels["compiler"])), str(HERE / "compile_kernels.py"), str(site.absolute()), str(work / "kernels.json")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            for line in run.stdout:
                say(line.rstrip())
        if run.returncode:
            raise RunError("a kernel could not be compiled (lines above); --no-kernels leaves it to the host")
    for package in plan["packages"].values():
        for folder in package.get("drop_after_compile", []):
            shutil.rmtree(site / folder, ignore_errors=True)


def _compiler(work: Path, needs: Mapping[str, str | None]) -> Path:
    folder = work / "compiler"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        names = [f"{name}=={version}" if version else name for name, version in needs.items()]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *names], check=True, stderr=sys.stderr)
    return python


def _native(plan: Mapping[str, Any], site: Path) -> list[str]:
    for package in plan["packages"].values():
        for glob in package.get("strip", []):
            for file in site.glob(glob):
                native.strip(file)
        if folder := package.get("unneeded"):
            native.drop_unneeded(site / folder, site, "libuc")
    return native.system_libraries([site / "mooncake" / "engine.so"], site / "syslibs")


def _extras(plan: Mapping[str, Any], site: Path) -> None:
    for name, text in plan["stand_ins"].items():
        file = site / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    shutil.copytree(HERE / "models", site / "models", dirs_exist_ok=True)
    own.put(site)
    (site / "env.sh").write_text(ENVIRONMENT)
    for compiled in site.rglob("__pycache__"):
        shutil.rmtree(compiled)


def _archives(site: Path, folder: Path) -> list[Path]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    grouped = [name for _, members in GROUPS for name in members]
    rest = sorted(p.name for p in site.iterdir() if p.name not in grouped)
    written = []
    for name, members in (*GROUPS, (REST, rest)):
        target = folder / f"{name}.tar.xz"
        pack.archive(site, [m for m in members if (site / m).exists()], target)
        written.append(target)
    return written
