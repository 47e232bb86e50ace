"""The real model, once per run: pulled into the cache that `diptych` itself uses, so that it is downloaded once."""

from pathlib import Path

import pytest

from services.modelfiles.prepare import prepare
from services.modelfiles.prepared import PreparedModel
from services.modelfiles.pull import pull

CACHE = Path.home() / ".cache" / "diptych" / "models"


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    return pull("smollm2", CACHE, print)


@pytest.fixture(scope="session")
def smollm2(smollm2_gguf: Path) -> PreparedModel:
    return PreparedModel.open(prepare(smollm2_gguf, CACHE, print))
