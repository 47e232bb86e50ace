"""A tiny random model, the requests that fault tests send, and what each of them must be answered; made once."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from services.modelfiles.prepared import PreparedModel
from tests.faults.expected import Alone, Expected
from tests.faults.trace import Asked, trace
from tests.support.local_cluster import prepared_tiny_model

REQUESTS = 200


@dataclass(frozen=True, slots=True)
class Known:
    """Requests and their right answers, in the same order."""

    asked: list[Asked]
    expected: list[Expected]

    def part(self, begin: int, end: int) -> "Known":
        return Known(self.asked[begin:end], self.expected[begin:end])


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> PreparedModel:
    return PreparedModel.open(prepared_tiny_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="session")
def tiny_model(tiny: PreparedModel) -> Path:
    return tiny.directory


@pytest.fixture(scope="session")
def alone(tiny: PreparedModel) -> Alone:
    """The engine that says what is right."""
    return Alone(tiny)


@pytest.fixture(scope="session")
def known(alone: Alone, tiny: PreparedModel) -> Known:
    asked = alone.given_stops(trace(REQUESTS, tiny.config.vocab))
    return Known(asked, [alone.answer(one) for one in asked])
