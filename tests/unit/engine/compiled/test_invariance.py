"""An answer's bits are its own: batched, chunked, cached, preempted or on more threads, a request gets the same logits.

Requests run through the real batcher on the compiled engine, in random mixes; each is compared, logit for logit, with
the same request alone and in one piece.
"""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from services.core.request import Request, Sampling
from services.engine.compiled.runner import CompiledRunner
from services.modelfiles.prepared import PreparedModel
from tests.unit.engine.compiled.engines import Answered, answer, engine, limits, request, tiny_prepared

MIXES = 50


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedModel:
    return tiny_prepared(tmp_path_factory.mktemp("model"), heads=6, kv_heads=2, hidden=96, tied=False)


@pytest.fixture(scope="module")
def runners(prepared: PreparedModel) -> list[CompiledRunner]:
    """Every form of weights and cache that has its own arithmetic, on one thread and on two."""
    return [
        engine(prepared, weights="int8", kv_dtype="float16", threads=2),
        engine(prepared, weights="float32", kv_dtype="int8", threads=1),
        engine(prepared, weights="float32", kv_dtype="float32", threads=2),
    ]


def random_requests(rng: random.Random) -> list[Request]:
    """Some share a prefix, some are long, some draw at random, some matter more."""
    shared = [rng.randrange(3, 300) for _ in range(rng.choice([16, 32, 47]))]
    requests = []
    for number in range(rng.randint(2, 7)):
        prompt = [rng.randrange(3, 300) for _ in range(rng.choice([1, 5, 16, 31, 32, 33, 90]))]
        if rng.random() < 0.5:
            prompt = shared + prompt
        sampling = Sampling(temperature=rng.choice([0.0, 0.8]), top_k=rng.choice([0, 5]), seed=number)
        requests.append(request(f"r{number}", prompt, rng.randint(1, 12), sampling, priority=rng.randint(0, 2)))
    return requests


def alone(runner: CompiledRunner, one: Request) -> Answered:
    return answer(runner, limits(step_seconds=10_000.0), lambda step: [one] if step == 0 else [], steps=100)


def assert_same(got: Answered, runner: CompiledRunner, requests: Sequence[Request]) -> None:
    for one in requests:
        name = one.key.request_id
        expected = alone(runner, one)
        assert got.tokens[name] == expected.tokens[name]
        for (_, position), row in expected.logits.items():
            assert np.array_equal(got.logits[name, position], row), f"{name} differs at position {position}"


@pytest.mark.parametrize("mix", range(MIXES))
def test_a_request_in_a_mix_gets_the_bits_it_gets_alone(mix: int, runners: list[CompiledRunner]) -> None:
    rng = random.Random(mix)
    runner = runners[mix % len(runners)]
    requests = random_requests(rng)
    arriving = {rng.randint(0, 12): [] for _ in requests} | {0: []}
    for one in requests:
        arriving[rng.choice(sorted(arriving))].append(one)
    batch = limits(
        num_blocks=rng.choice([14, 20, 40]),
        step_seconds=float(rng.choice([3, 17, 40, 200])),
        max_running=rng.choice([2, 4, 8]),
    )
    assert_same(answer(runner, batch, lambda step: arriving.get(step, [])), runner, requests)


def test_a_preempted_request_gets_the_bits_it_gets_undisturbed(runners: list[CompiledRunner]) -> None:
    rng = random.Random(0)
    requests = [
        request(f"r{number}", [rng.randrange(3, 300) for _ in range(30)], 40, priority=number) for number in range(4)
    ]
    got = answer(runners[0], limits(num_blocks=12), lambda step: requests[step : step + 1])
    assert got.preemptions > 0
    assert_same(got, runners[0], requests)


def test_a_cached_prefix_gives_the_bits_of_a_fresh_one(runners: list[CompiledRunner]) -> None:
    prompt = [3 + at % 200 for at in range(64)]
    first, second = request("first", prompt, 8), request("second", [*prompt, 9, 9], 8)
    got = answer(runners[1], limits(), lambda step: {0: [first], 30: [second]}.get(step, []))
    assert_same(got, runners[1], [first, second])
