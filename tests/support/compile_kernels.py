"""Compiles every GPU kernel as the engine launches it, for a device that need not be there.

    python tests/support/compile_kernels.py 90 float16     (compute capability, type of rows)

Prints a JSON object per kernel.

The backend runs on CPU tensors; each launch stops after the compiler has made machine code for the device.
"""

import json
import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from services.engine.backend import HeadNorms, Norm
from services.engine.matrix import Int8Matrix
from services.engine.triton.backend import TritonBackend
from tests.unit.engine.attention_cases import Case, scene

CPU = torch.device("cpu")
HEADS, KV_HEADS, HEAD_DIM = 8, 2, 128
launch = JITFunction.run


class Absent:
    """The driver of a device that is only compiled for."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compiled(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    code = launch(kernel, *args, grid=grid, warmup=True, **kwargs)
    name = kernel.fn.__name__
    print(json.dumps({"kernel": name, "shared": code.metadata.shared, "bytes": len(code.asm["cubin"])}), flush=True)


def compile_all(dtype: torch.dtype) -> None:
    backend = TritonBackend()
    for kv_dtype in ("float16", "int8"):
        chunks = ((100, 40), (131, 1))
        scene(Case(chunks, HEADS, KV_HEADS, HEAD_DIM, kv_dtype=kv_dtype, dtype=dtype), CPU).attended(backend)
    rows, wide = torch.zeros(3, 1024, dtype=dtype), Norm(torch.ones(1024, dtype=dtype), 1e-5)
    backend.normalized(rows, wide)
    backend.added(rows, rows, wide)
    backend.gated(rows)
    for height in (3, 100):
        backend.linear(rows.new_zeros(height, 1024), Int8Matrix.nearest(torch.ones(512, 1024)), rows.new_ones(512))
    angles = (torch.ones(3, 1, HEAD_DIM // 2), torch.zeros(3, 1, HEAD_DIM // 2))
    narrow = Norm(torch.ones(HEAD_DIM, dtype=dtype), 1e-5)
    query, key = rows.view(3, HEADS, HEAD_DIM), rows.new_zeros(3, KV_HEADS, HEAD_DIM)
    for norms in (None, HeadNorms(narrow, narrow)):
        backend.rotated(query, key, angles, norms)


if __name__ == "__main__":
    driver.set_active(Absent(int(sys.argv[1])))
    JITFunction.run = compiled
    compile_all({"float16": torch.float16, "float32": torch.float32}[sys.argv[2]])
