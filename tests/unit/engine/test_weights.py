"""Every tensor is used exactly once, or its name is in the error."""

import numpy as np
import pytest
import torch

from services.engine.weights import DecoderWeights
from services.modelfiles.errors import ModelError
from tests.unit.engine.tiny_decoder import CPU, Pair, make_pair


@pytest.fixture(scope="module")
def qwen() -> Pair:
    return make_pair("qwen2", tie_word_embeddings=False)


@pytest.fixture(scope="module")
def everything() -> Pair:
    """Has every tensor that any model has."""
    return make_pair("qwen3", tie_word_embeddings=False, attention_bias=True)


def test_each_missing_tensor_is_named(everything: Pair) -> None:
    for name in everything.arrays:
        rest = {other: array for other, array in everything.arrays.items() if other != name}
        with pytest.raises(ModelError, match=f"{name} is missing"):
            DecoderWeights.assemble(everything.config, rest, CPU)


def test_each_tensor_of_a_wrong_shape_is_named(everything: Pair) -> None:
    for name, array in everything.arrays.items():
        wrong = everything.arrays | {name: np.append(array, array[-1:], axis=0)}
        with pytest.raises(ModelError, match=f"{name} has shape"):
            DecoderWeights.assemble(everything.config, wrong, CPU)


def test_a_transposed_tensor_is_refused(qwen: Pair) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    with pytest.raises(ModelError, match=name):
        DecoderWeights.assemble(qwen.config, qwen.arrays | {name: qwen.arrays[name].T}, CPU)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.3.input_layernorm.weight",
        "model.layers.0.self_attn.o_proj.bias",
        "model.layers.0.self_attn.q_norm.weight",
    ],
)
def test_a_tensor_left_over_is_named(qwen: Pair, name: str) -> None:
    with pytest.raises(ModelError, match=name):
        DecoderWeights.assemble(qwen.config, qwen.arrays | {name: np.zeros(48, np.float32)}, CPU)


def test_a_head_beside_tied_embeddings_is_left_over(llama: Pair) -> None:
    head = llama.arrays["model.embed_tokens.weight"]
    with pytest.raises(ModelError, match="lm_head"):
        DecoderWeights.assemble(llama.config, llama.arrays | {"lm_head.weight": head}, CPU)


def test_writable_arrays_are_shared_and_read_only_ones_copied(llama: Pair) -> None:
    name = "model.norm.weight"
    for is_writable in (True, False):
        array = llama.arrays[name].copy()
        array.flags.writeable = is_writable
        weights = DecoderWeights.assemble(llama.config, llama.arrays | {name: array}, CPU)
        assert np.shares_memory(weights.norm.numpy(), array) == is_writable
        assert weights.norm.tolist() == array.tolist()


def test_half_precision_arrays_become_float32(llama: Pair) -> None:
    halves = {name: array.astype(np.float16) for name, array in llama.arrays.items()}
    weights = DecoderWeights.assemble(llama.config, halves, CPU)
    assert weights.layers[2].qkv.dtype == weights.embedding.dtype == torch.float32
    assert weights.head is weights.embedding
