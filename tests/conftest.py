"""The real model, once per run: pulled into the cache that `diptych` itself uses, so that it is downloaded once."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from services.modelfiles.prepare import prepare
from services.modelfiles.prepared import PreparedModel
from services.modelfiles.pull import pull

if not os.environ.get("CI"):
    # In CI hypothesis chooses much the same by itself, and the same examples every time.
    settings.register_profile("busy-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy-machine")

# Before anything imports Triton: without a GPU its kernels run under its interpreter. TRITON_INTERPRET=0 takes the GPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

CACHE = Path.home() / ".cache" / "diptych" / "models"


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    return pull("smollm2", CACHE, print)


@pytest.fixture(scope="session")
def smollm2(smollm2_gguf: Path) -> PreparedModel:
    return PreparedModel.open(prepare(smollm2_gguf, CACHE, print))
