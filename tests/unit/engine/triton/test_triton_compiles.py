"""The interpreter checks values, not types or sizes: the compiler does, and needs no GPU."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.engine.triton import kernels

ROOT = Path(__file__).parents[4]

SHARED = [
    pytest.param(90, "float16", 227, id="H100, H200"),
    pytest.param(90, "float32", 227, id="H100, H200, float32", marks=pytest.mark.sweep),
    pytest.param(80, "float16", 163, id="A100", marks=pytest.mark.sweep),
    pytest.param(80, "float32", 163, id="A100, float32", marks=pytest.mark.sweep),
    pytest.param(89, "float16", 99, id="L4, RTX 4090", marks=pytest.mark.sweep),
    pytest.param(89, "float32", 99, id="L4, RTX 4090, float32", marks=pytest.mark.sweep),
]
"""Compute capability, type of rows, and the KiB of shared memory that one program may have there."""


@pytest.mark.parametrize(("capability", "dtype", "kib"), SHARED)
def test_every_kernel_compiles_and_fits_the_device(capability: int, dtype: str, kib: int, tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "tests/support/compile_kernels.py", str(capability), dtype],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr[-3000:]
    lines = [json.loads(line) for line in made.stdout.splitlines()]
    assert {line["kernel"] for line in lines} == launched_kernels()
    assert all(line["bytes"] > 0 for line in lines)
    assert max(line["shared"] for line in lines) <= kib * 1024


def launched_kernels() -> set[str]:
    """Functions of the kernel modules that have no leading underscore: those with one are called by others."""
    modules = Path(kernels.__path__[0]).glob("*.py")
    bodies = [ast.parse(path.read_text()).body for path in modules]
    names = {node.name for body in bodies for node in body if isinstance(node, ast.FunctionDef)}
    return {name for name in names if not name.startswith("_")}
