"""The tiny decoder that most tests share."""

import pytest

from tests.unit.engine.tiny_decoder import Pair, make_pair


@pytest.fixture(scope="session")
def llama() -> Pair:
    return make_pair()
