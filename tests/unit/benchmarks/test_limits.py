"""What the machine allows, by hand-made numbers."""

from dataclasses import replace

import pytest

from peers.limits import Machine, head_parameters, layer_parameters, prefill_flops
from services.core.model_config import ModelConfig
from services.modelfiles.tensors import expected_tensors
from tests.unit.benchmarks.findings import CONFIG

MACHINE = Machine(read_bytes_per_second=10e9, flops_per_second=100e9, whole_per_second=50e9)


def test_a_step_that_takes_as_long_as_reading_the_weights_reaches_the_limit() -> None:
    assert MACHINE.decode_share(weight_bytes=100_000_000, tokens_per_second=100) == pytest.approx(1.0)
    assert MACHINE.decode_share(weight_bytes=100_000_000, tokens_per_second=75) == pytest.approx(0.75)


def test_a_prefill_at_the_rate_of_a_large_product_reaches_the_limit() -> None:
    assert MACHINE.prefill_share(flops=200e9, seconds=2.0) == pytest.approx(1.0)
    assert MACHINE.prefill_share(flops=200e9, seconds=4.0) == pytest.approx(0.5)


def test_the_machine_is_the_median_of_its_samples() -> None:
    samples = [Machine(1.0, 30.0, 9.0), Machine(3.0, 10.0, 7.0), Machine(2.0, 20.0, 8.0)]
    assert Machine.median(samples) == Machine(2.0, 20.0, 8.0)


def test_the_quicker_arithmetic_is_the_limit_of_a_prefill() -> None:
    quicker = replace(MACHINE, whole_per_second=200e9)
    assert quicker.prefill_share(1e9, 0.01) == MACHINE.prefill_share(1e9, 0.01) / 2


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, heads=4, kv_heads=4, head_dim=24)])
def test_the_parameters_counted_are_those_of_the_matrices(config: ModelConfig) -> None:
    shapes = expected_tensors(config).items()
    matrices = sum(shape[0] * shape[1] for name, shape in shapes if len(shape) == 2 and ".layers." in name)
    assert layer_parameters(config) == matrices
    assert head_parameters(config) == config.vocab * config.hidden


def test_the_operations_of_a_prompt_grow_faster_than_its_length() -> None:
    short, long = prefill_flops(CONFIG, 100), prefill_flops(CONFIG, 200)
    head = 2 * head_parameters(CONFIG)
    assert long - head > 2 * (short - head)


def test_the_operations_of_one_token_are_two_per_parameter_and_its_scores() -> None:
    scores = 4 * CONFIG.layers * CONFIG.heads * CONFIG.head_dim
    assert prefill_flops(CONFIG, 1) == 2 * (layer_parameters(CONFIG) + head_parameters(CONFIG)) + scores
