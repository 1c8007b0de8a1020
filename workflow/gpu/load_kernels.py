"""Load every kernel that was compiled elsewhere, once; remove those that do not load here: SGLang and flashinfer then compile their own.

    python load_kernels.py SITE
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch  # noqa: F401  (brings CUDA's libraries into the process)
import tvm_ffi

kernels = sorted(file for folder in ("jitcache", "flashinfer/data/aot") for file in (Path(sys.argv[1]) / folder).rglob("*.so"))
bad = 0
for kernel in kernels:
    try:
        tvm_ffi.load_module(str(kernel))
    except Exception as error:
        bad += 1
        print(f"{kernel.name}: {str(error).splitlines()[0][:200]}: removed", flush=True)
        kernel.unlink()
print(f"{len(kernels) - bad} of {len(kernels)} kernels load here", flush=True)
