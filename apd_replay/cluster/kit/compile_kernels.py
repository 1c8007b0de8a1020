"""Compile the run-time kernels of SGLang and flashinfer before the trip, with nvcc but without a GPU.

Run by `apd kit build` in an interpreter that has torch (any build, CPU too) and tvm-ffi of the kit's version:

    python compile_kernels.py SITE RECIPE.json

SGLang looks a compiled kernel up by a name made of its arguments, its source's digest, the architecture and tvm-ffi's
version (read in jit_kernel/utils.py of 0.5.15.post1), never by who compiled it, so what is compiled here is loaded there as
it is. SITE/jitcache receives SGLang's, SITE/flashinfer/data/aot flashinfer's. Only the kernels' own modules are imported:
the packages above them pull in half of SGLang, and none of that enters the name.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import os
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any


def bare_package(name: str, folder: Path) -> types.ModuleType:
    """Register `name` as a package whose __init__ is not run."""
    package = types.ModuleType(name)
    package.__path__ = [str(folder)]
    package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    sys.modules[name] = package
    return package


def stand_in(name: str, **content: Any) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(content)
    sys.modules[name] = module


def undecorated(function: Callable[..., Any] | None = None, **_: Any) -> Any:
    return function if function is not None else (lambda inner: inner)


def pretend_gpu(major: int, minor: int) -> None:
    import torch

    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda device=None: (major, minor)


def compile_sglang(site: Path, kernels: list[dict[str, Any]]) -> int:
    """Compile each `{module, function, arguments}`; returns how many failed."""
    import torch
    import tvm_ffi.cpp

    os.environ["TVM_FFI_CACHE_DIR"] = str(site / "jitcache")
    bare_package("sglang", site / "sglang")
    for name in ("jit_kernel", "srt", "srt.utils"):
        bare_package(f"sglang.{name}", site / "sglang" / name.replace(".", "/"))
    stand_in("sglang.utils", is_in_ci=lambda: False)
    stand_in("sglang.srt.utils.custom_op", register_custom_op=undecorated)
    stand_in("sglang.kernel_api_logging", debug_kernel_api=undecorated)
    # Building is enough: loading would need the driver's library, which a machine without a GPU lacks.
    tvm_ffi.cpp.load_inline = tvm_ffi.cpp.build_inline
    tvm_ffi.cpp.load = tvm_ffi.cpp.build

    failed = 0
    for kernel in kernels:
        started = time.monotonic()
        arguments = [getattr(torch, a) if isinstance(a, str) else a for a in kernel["arguments"]]
        label = f"{kernel['module']}.{kernel['function']}({', '.join(map(str, kernel['arguments']))})"
        try:
            module = importlib.import_module(f"sglang.jit_kernel.{kernel['module']}")
            getattr(module, kernel["function"])(*arguments)
            print(f"  {label}: {time.monotonic() - started:.0f} s", flush=True)
        except Exception as error:
            failed += 1
            print(f"  {label}: FAILED: {str(error)[-1500:]}", flush=True)
    for file in (site / "jitcache").rglob("*"):
        if file.is_file() and file.suffix != ".so":
            file.unlink()
    return failed


def compile_flashinfer(site: Path, cuda: Path, architecture: str, names: list[str], headers: list[str]) -> int:
    """Compile flashinfer's modules into the folder where it looks for ones compiled ahead; returns how many failed."""
    import tvm_ffi.libinfo

    data = site / "flashinfer" / "data"
    cccl = [data / "cccl" / part for part in ("cub", "libcudacxx/include", "thrust")]
    cutlass = [data / "cutlass" / part for part in ("include", "tools/util/include")]
    includes = [*cccl, data / "include", data / "csrc", *cutlass, data / "spdlog" / "include", *tvm_ffi.libinfo.include_paths(), *headers]
    failed = 0
    for name in names:
        target = data / "aot" / name / f"{name}.so"
        target.parent.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        command = [
            str(cuda / "bin" / "nvcc"), "-shared", "-cudart=shared", "-Xcompiler", "-fPIC", "-std=c++17", "-O3", "-DNDEBUG", "-use_fast_math",
            "--expt-relaxed-constexpr", "-Xfatbin=-compress-all", "-static-global-template-stub=false",
            f"-gencode=arch=compute_{architecture},code=sm_{architecture}", "-DPy_LIMITED_API=0x03090000",
            *(f"-DFLASHINFER_ENABLE_{kind}" for kind in ("F16", "BF16", "FP8_E4M3", "FP8_E5M2", "FP8_E8M0", "FP4_E2M1")),
            "-DENABLE_BF16", "-DENABLE_FP8", *(f"-I{folder}" for folder in includes),
            str(data / "csrc" / f"{name}.cu"), str(data / "csrc" / f"flashinfer_{name}_binding.cu"), "-o", str(target),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            failed += 1
            print(f"  flashinfer {name}: FAILED: {done.stderr[-1500:]}", flush=True)
        else:
            print(f"  flashinfer {name}: {time.monotonic() - started:.0f} s", flush=True)
    return failed


def main() -> int:
    site, kernels = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    major, minor = kernels["capability"]
    pretend_gpu(major, minor)
    # tvm-ffi takes the folder above nvcc for CUDA's, which a wrapper script in /usr/local/bin would send astray.
    cuda = Path(os.environ.setdefault("CUDA_HOME", "/usr/local/cuda"))
    failed = compile_flashinfer(site, cuda, f"{major}{minor}a", kernels["flashinfer"], kernels["headers"])
    failed += compile_sglang(site, kernels["sglang"])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
