"""Whatever instructions a processor has for products of whole numbers, the bits are the same."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from llvmlite import binding

from tests.unit.engine.compiled.kernels import Multiplier, stored

ROOT = Path(__file__).parents[4]
PROCESSORS = {"products of halves": "+avx2,+fma,+f16c,+avx", "plain multiplication": "+fma,+f16c,+avx"}
"""What they have beside the least of their kind."""


def digest() -> str:
    """Of what every form of whole numbers gives for some rows, and for a row that is alone."""
    random = np.random.default_rng(0)
    weights, x = random.standard_normal((32, 96), np.float32), random.standard_normal((11, 96), np.float32)
    multipliers = [Multiplier(stored(weights, form), form) for form in ("int8", "q8_0", "q4_1", "q4_0")]
    results = [multiplier(rows) for multiplier in multipliers for rows in (x, x[:1])]
    return hashlib.sha256(np.concatenate(results).tobytes()).hexdigest()


@pytest.mark.skipif(not binding.get_host_cpu_features().get("avx2"), reason="needs a processor that can run the others")
@pytest.mark.parametrize("which", PROCESSORS)
def test_a_lesser_processor_gives_the_same_bits(which: str, tmp_path: Path) -> None:
    features = PROCESSORS[which]
    lesser = {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    code = "from tests.unit.engine.compiled.test_processors import digest; print(digest())"
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | lesser, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == digest()
