"""The limits that steps are compared with, and their pictures."""

import re
from dataclasses import replace

import pytest

from growth.limit import StepLimit
from growth.plot import Axes, Line, svg
from services.core.model_config import KVFormat, ModelConfig, RopeScaling

CONFIG = ModelConfig(
    architecture="llama",
    layers=2,
    hidden=64,
    intermediate=128,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocab=1000,
    context=4096,
    norm_eps=1e-5,
    rope_theta=1e4,
    rope_scaling=RopeScaling(),
    tied_embeddings=True,
    attention_bias=False,
)
PARAMETERS = 2 * (64 * (4 + 2 + 2) * 16 + 64 * 64 + 3 * 64 * 128) + 1000 * 64
LIMIT = StepLimit(CONFIG, KVFormat("float16", 16, 2, 2, 16), 10**6, 1e9, 1e12)


def test_one_stream_is_limited_by_reading_weights_and_its_cache() -> None:
    token_bytes = 2 * 2 * 2 * 16 * 2
    assert LIMIT.decode(1, 0) == pytest.approx((10**6 + token_bytes) / 1e9)
    assert LIMIT.decode(1, 1000) - LIMIT.decode(1, 0) == pytest.approx(1000 * token_bytes / 1e9)


def test_many_rows_are_limited_by_multiplying() -> None:
    slow = replace(LIMIT, flops_per_second=1e6)
    pair = 4 * 2 * 4 * 16
    assert slow.decode(8, 0) == pytest.approx(8 * (2 * PARAMETERS + pair) / 1e6)


def test_a_prompt_needs_logits_of_one_row_only() -> None:
    slow = replace(LIMIT, flops_per_second=1e6)
    layers = PARAMETERS - 1000 * 64
    expected = 2 * layers * 100 + 2 * 1000 * 64 + 4 * 2 * 4 * 16 * 100 * 101 / 2
    assert slow.prefill(100) == pytest.approx(expected / 1e6)


def test_a_picture_has_every_line_inside_its_frame() -> None:
    lines = [Line("a", [(1, 3.0), (64, 250.0)], [(1, 2.0), (64, 99.0)]), Line("b", [(2, 0.4)], [(2, 0.3)])]
    drawn = svg(Axes("title", "x", "y"), lines)
    assert drawn.count("<polyline") == 4 and drawn.count("stroke-dasharray") == 2
    for x, y in re.findall(r"([\d.]+),([\d.]+)", " ".join(re.findall(r'points="([^"]*)"', drawn))):
        assert 0 < float(x) < 560 and 0 < float(y) < 360
