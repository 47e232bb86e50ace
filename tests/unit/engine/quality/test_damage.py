"""Damage that is planted in a served model is found and its place named; models without damage pass in every form."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.engine.compiled.runner import CompiledRunner
from services.engine.matrix import Int8Matrix
from services.engine.quality.compiled_subject import CompiledSubject
from services.engine.quality.pair import Pair
from services.engine.quality.torch_subject import TorchSubject
from services.engine.runner import ModelRunner
from tests.unit.engine.quality.pairs import LAYERS, PROMPTS, damaged_places, pair, plant, quiet, tiny, tiny_quantized

INT8_SCALES = 64
"""Bytes of a panel's scales in int8."""


def runner_of(found: Pair) -> CompiledRunner:
    assert isinstance(found.served, CompiledSubject)
    return found.served._runner


def torch_runner_of(found: Pair) -> ModelRunner:
    assert isinstance(found.served, TorchSubject)
    return found.served._runner


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "F16", "BF16"])
@pytest.mark.parametrize("weights", ["native", "int8"])
def test_a_model_without_damage_passes_in_every_form(kind: str, weights: str, tmp_path: Path) -> None:
    found = pair(tiny_quantized(tmp_path, kind), weights=weights).inspected(PROMPTS, quiet)
    assert not found.damage
    form = {"F16": "float16", "BF16": "bfloat16"}.get(kind, kind.lower()) if weights == "native" else "int8"
    assert [each.form for each in found.matrices] == [form] * (4 * LAYERS + 1)
    if weights == "native":
        assert all(each.error == each.excess == 0 for each in found.matrices)
    else:
        assert all(0.002 < each.error < 0.02 and 0.9 < each.excess <= 1.001 for each in found.matrices)


@pytest.mark.parametrize("kv_dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize(
    "settings", [{}, {"tied": False, "attention_bias": True}, {"architecture": "qwen3", "head_dim": 32}]
)
def test_no_kind_of_cache_and_no_architecture_looks_like_damage(
    settings: dict[str, Any], kv_dtype: str, tmp_path: Path
) -> None:
    prepared = tiny(tmp_path, **settings)
    for weights in ("int8", "float32"):
        assert damaged_places(pair(prepared, weights=weights, kv_dtype=kv_dtype)) == []


def test_a_stage_alone_computes_what_it_computes_in_the_model(tmp_path: Path) -> None:
    """Else an error of a stage would say nothing of the model."""
    found = pair(tiny(tmp_path), weights="float32", kv_dtype="float32")
    tokens = PROMPTS[0].tokens
    rows = found.served.embedded(tokens).copy()
    for index in range(LAYERS):
        rows = found.served.layer(index, rows).copy()
    whole = np.concatenate([part.copy() for part in found.served.every_logits(tokens)])
    assert np.array_equal(found.served.head(rows), whole)


@pytest.mark.parametrize("factor", [1.5, 1.02, 0.0, np.nan])
def test_wrong_scales_of_a_matrix_are_found(factor: float, tmp_path: Path) -> None:
    prepared = tiny(tmp_path)
    pair(prepared)
    plant(prepared, "layers.4.down", lambda kept, _: _scale(kept[:, :INT8_SCALES], factor))
    assert damaged_places(pair(prepared))[0] == "layer 4, down"


def test_the_only_matrix_of_its_form_is_judged_by_itself(tmp_path: Path) -> None:
    prepared = tiny(tmp_path, tied=False)
    pair(prepared)
    plant(prepared, "model.embed_tokens.weight", lambda kept, _: _scale(kept[:, :INT8_SCALES], np.nan))
    assert damaged_places(pair(prepared)) == ["embedding", "embedding"]


def test_one_wrong_scale_of_one_channel_is_found(tmp_path: Path) -> None:
    prepared = tiny(tmp_path)
    pair(prepared)
    plant(prepared, "layers.2.qkv", lambda kept, _: _scale(kept[1:2, 4:8], 1.01))
    assert damaged_places(pair(prepared)) == ["layer 2, qkv"]


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_a_wrong_scale_of_a_block_is_found(kind: str, tmp_path: Path) -> None:
    prepared = tiny_quantized(tmp_path, kind)
    pair(prepared)
    plant(prepared, "layers.5.out", lambda kept, _: _negate_first_float16(kept))
    assert damaged_places(pair(prepared))[0] == "layer 5, out"


@pytest.mark.parametrize("weights", ["int8", "float32"])
def test_a_matrix_in_the_place_of_another_is_found(weights: str, tmp_path: Path) -> None:
    prepared = tiny(tmp_path)
    pair(prepared, weights=weights)
    plant(prepared, "layers.3.gate_up", lambda kept, of: _replace(kept, of("layers.1.gate_up")))
    assert damaged_places(pair(prepared, weights=weights)) == ["layer 3, gate_up", "layer 3"]


@pytest.mark.parametrize(("weights", "kv_dtype"), [("int8", "float16"), ("int8", "int8"), ("float32", "float32")])
@pytest.mark.parametrize("vector", ["attention_norm", "mlp_norm"])
def test_a_damaged_norm_is_found_though_every_matrix_is_sound(
    vector: str, weights: str, kv_dtype: str, tmp_path: Path
) -> None:
    found = pair(tiny(tmp_path), weights=weights, kv_dtype=kv_dtype)
    getattr(runner_of(found).model, vector)[4] *= 0.5
    assert damaged_places(found) == ["layer 4"]


def test_one_damaged_number_of_a_norm_is_found_where_nothing_is_rounded(tmp_path: Path) -> None:
    found = pair(tiny(tmp_path), weights="float32")
    runner_of(found).model.mlp_norm[1, 17] *= 1.5
    assert damaged_places(found) == ["layer 1"]


@pytest.mark.parametrize("weights", ["int8", "float32"])
def test_a_damaged_last_norm_is_found_at_the_head(weights: str, tmp_path: Path) -> None:
    found = pair(tiny(tmp_path), weights=weights)
    runner_of(found).model.norm[:8] *= 3
    assert damaged_places(found) == ["head"]


def test_a_norm_that_is_not_a_number_is_found(tmp_path: Path) -> None:
    found = pair(tiny(tmp_path))
    runner_of(found).model.attention_norm[0, 0] = np.nan
    assert damaged_places(found) == ["layer 0"]


def test_the_torch_engine_is_checked_in_the_same_way(tmp_path: Path) -> None:
    prepared = tiny(tmp_path)
    assert damaged_places(pair(prepared, kind="torch", weights="int8", kv_dtype="int8")) == []
    found = pair(prepared, kind="torch", weights="int8")
    down = torch_runner_of(found).decoder.weights.layers[3].down
    assert isinstance(down, Int8Matrix)
    down.scales[5] *= 1.1
    assert damaged_places(found) == ["layer 3, down"]


def _scale(scales: np.ndarray, factor: float) -> None:
    scales[:] = (np.ascontiguousarray(scales).view(np.float32) * np.float32(factor)).view(np.uint8)


def _negate_first_float16(panels: np.ndarray) -> None:
    panels[0, 1] ^= 0x80


def _replace(panels: np.ndarray, other: np.ndarray) -> None:
    panels[:] = other
