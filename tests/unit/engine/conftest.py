"""The tiny decoder that most tests share, and the real model."""

from pathlib import Path

import pytest

from services.modelfiles.prepare import prepare
from services.modelfiles.prepared import PreparedModel
from services.modelfiles.pull import pull
from tests.unit.engine.tiny_decoder import Pair, make_pair

CACHE = Path.home() / ".cache" / "diptych" / "models"


@pytest.fixture(scope="session")
def llama() -> Pair:
    return make_pair()


@pytest.fixture(scope="session")
def smollm2() -> PreparedModel:
    """SmolLM2, in the cache that `diptych` itself uses, so that it is downloaded and prepared once."""
    return PreparedModel.open(prepare(pull("smollm2", CACHE, print), CACHE, print))
