"""The compiled engine against the torch reference, in every architecture and form of weights."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from services.core.engine_settings import EngineSettings
from services.core.plan import StepPlan
from services.engine.batch import Batch
from services.engine.compiled.load import refusal
from services.engine.torch_load import TorchSettings, load_torch
from services.modelfiles.prepare import prepare
from services.modelfiles.prepared import PreparedModel
from tests.support.tiny_gguf import write_tiny_gguf
from tests.support.tiny_model import write_tiny_hf_model
from tests.unit.engine.compiled.engines import Logits, chunk, engine, tiny_prepared

TOKENS = [3 + (37 * at * at + 11 * at) % 300 for at in range(70)]
BLOCKS = [5, 1, 7, 0, 2]

MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, untied, biased": {"tied": False, "attention_bias": True},
    "llama, wide heads": {"head_dim": 32, "heads": 3, "kv_heads": 1},
    "qwen2": {"architecture": "qwen2"},
    "qwen3": {"architecture": "qwen3", "head_dim": 32},
    "a vocabulary that is not whole panels": {"vocab": 325},
    "yarn": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24}},
}


def torch_logits(prepared: PreparedModel) -> Logits:
    """`[tokens, vocab]`."""
    reference = load_torch(prepared, TorchSettings(num_blocks=8, dtype="float32"))
    with torch.inference_mode():
        batch = Batch.of([chunk("r", TOKENS, 0, BLOCKS)], 16, torch.device("cpu"))
        return reference.decoder.logits(reference.decoder.forward(batch, reference.cache)).numpy()


def compiled_logits(prepared: PreparedModel, **choices: Any) -> tuple[Logits, list[int]]:
    """At some positions, each the last of a chunk; and which positions."""
    runner = engine(prepared, **choices)
    ends = [1, 2, 17, 33, 50, 69, 70]
    rows = [
        runner.logits([chunk("r", TOKENS[begin:end], begin, BLOCKS)])[0].copy()
        for begin, end in zip([0, *ends], ends, strict=False)
    ]
    return np.stack(rows), [end - 1 for end in ends]


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_torch_reference(name: str, tmp_path: Path) -> None:
    prepared = tiny_prepared(tmp_path, **MODELS[name])
    got, at = compiled_logits(prepared)
    np.testing.assert_allclose(got, torch_logits(prepared)[at], atol=2e-5)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_a_smaller_cache_changes_logits_little(dtype: str, tmp_path: Path) -> None:
    prepared = tiny_prepared(tmp_path)
    exact, _ = compiled_logits(prepared)
    close, _ = compiled_logits(prepared, kv_dtype=dtype)
    error = np.abs(close - exact).max()
    assert 0 < error < {"float16": 0.02, "int8": 0.5}[dtype]


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_floats_as_in_the_file_give_the_bits_of_their_float32_values(kind: str, tmp_path: Path) -> None:
    native, exact = native_and_float32(kind, tmp_path)
    assert np.array_equal(native, exact)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_whole_numbers_as_in_the_file_differ_from_their_float32_values_by_rows_of_sixteen_bits(
    kind: str, tmp_path: Path
) -> None:
    native, exact = native_and_float32(kind, tmp_path)
    assert np.abs(native - exact).max() < 5e-4 * np.abs(exact).max()


def native_and_float32(kind: str, directory: Path) -> tuple[Logits, Logits]:
    source = write_tiny_hf_model(directory / "source")
    path = write_tiny_gguf(source, directory / "model.gguf", quantization=gguf.GGMLQuantizationType[kind])
    prepared = PreparedModel.open(prepare(path, directory / "cache"))
    native, _ = compiled_logits(prepared, weights="native")
    exact, _ = compiled_logits(prepared, weights="float32")
    return native, exact


def test_int8_is_the_default_for_what_is_not_quantized_in_the_file(tmp_path: Path) -> None:
    prepared = tiny_prepared(tmp_path)
    default, _ = compiled_logits(prepared, weights="auto")
    int8, _ = compiled_logits(prepared, weights="int8")
    exact, _ = compiled_logits(prepared)
    assert np.array_equal(default, int8)
    assert 0 < np.abs(int8 - exact).mean() < 0.2


def test_packed_weights_are_kept_and_found_again(tmp_path: Path) -> None:
    prepared = tiny_prepared(tmp_path)
    first, _ = compiled_logits(prepared, weights="int8")
    (kept,) = (prepared.directory / "packed").glob("int8-*.bin")
    written = kept.stat().st_mtime_ns
    again, _ = compiled_logits(PreparedModel.open(prepared.directory), weights="int8")
    assert np.array_equal(first, again) and kept.stat().st_mtime_ns == written


def test_a_row_that_is_not_a_number_fails_its_request_and_no_other(tmp_path: Path) -> None:
    prepared = tiny_prepared(tmp_path)
    runner = engine(prepared)
    good = chunk("good", TOKENS[:20], 0, [0, 1])
    alone = runner.execute(StepPlan((good,))).drawn[good.key]
    runner.kv._blocks[2] = 0xFF  # all NaN
    later = chunk("bad", TOKENS[21:22], 20, [2, 3])
    result = runner.execute(StepPlan((later, good)))
    assert later.key in result.failed and result.drawn == {good.key: alone}


def test_a_table_too_short_for_its_chunk_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(IndexError):
        engine(tiny_prepared(tmp_path)).logits([chunk("r", TOKENS[:17], 0, [0])])


@pytest.mark.parametrize(
    ("settings", "changes", "word"),
    [
        ({"hidden": 40, "heads": 5, "kv_heads": 5}, {}, "hidden"),
        ({}, {"block_size": 8}, "block"),
        ({}, {"device": "cuda"}, "CPU"),
    ],
)
def test_what_cannot_be_computed_is_said(
    settings: dict[str, Any], changes: dict[str, Any], word: str, tmp_path: Path
) -> None:
    prepared = tiny_prepared(tmp_path, **settings)
    reason = refusal(prepared.config, EngineSettings(**{"num_blocks": 8, **changes}))
    assert reason is not None and word in reason


def test_a_model_directory_is_needed_for_nothing_but_reading(tmp_path: Path) -> None:
    source = write_tiny_hf_model(tmp_path / "source")
    prepared = PreparedModel.open(prepare(source, tmp_path / "cache"))
    (prepared.directory / "packed").write_text("in the way")
    got, at = compiled_logits(prepared)
    np.testing.assert_allclose(got, torch_logits(prepared)[at], atol=2e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_blocks_go_from_one_engine_to_the_other(dtype: Any, tmp_path: Path) -> None:
    prepared = tiny_prepared(tmp_path)
    compiled = engine(prepared, kv_dtype=dtype)
    reference = load_torch(prepared, TorchSettings(num_blocks=8, dtype=dtype)).runner
    prompt, last = chunk("r", TOKENS[:32], 0, [3, 4]), chunk("r", TOKENS[32:33], 32, [3, 4, 5])
    for source, target in ((compiled, reference), (reference, compiled)):
        source.execute(StepPlan((prompt,)))
        for block in prompt.blocks:
            target.kv.write_block(block, source.kv.read_block(block))
        assert source.kv.format == target.kv.format
        assert source.execute(StepPlan((last,))).drawn == target.execute(StepPlan((last,))).drawn
