from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from services.core.model_config import RopeScaling
from services.modelfiles.errors import ModelError
from services.modelfiles.gguf_config import llama3_scaling
from services.modelfiles.gguf_source import read_gguf
from services.modelfiles.hf_source import read_hf
from services.modelfiles.tensors import checked_tensors
from tests.support.tiny_gguf import write_tiny_gguf
from tests.support.tiny_model import write_tiny_hf_model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_gguf_file_and_the_directory_it_was_made_from_are_one_model(
    tmp_path: Path, architecture: str, tied: bool
) -> None:
    directory = write_tiny_hf_model(tmp_path / "hf", architecture=architecture, tied=tied)
    theirs, ours = read_hf(directory), read_gguf(write_tiny_gguf(directory, tmp_path / "a.gguf"))
    assert ours.config == theirs.config
    assert ours.vocabulary == theirs.vocabulary
    assert ours.chat_template == theirs.chat_template
    expected = checked_tensors(theirs.config, theirs.tensors)
    found = checked_tensors(ours.config, ours.tensors)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor.read(), expected[name].read(), err_msg=name)


def test_quantized_rows_are_put_back_in_order_too(tmp_path: Path, tiny: Path) -> None:
    path = write_tiny_gguf(tiny, tmp_path / "a.gguf", quantization=gguf.GGMLQuantizationType.Q8_0)
    exact, found = read_hf(tiny).tensors, read_gguf(path).tensors
    for name in found:
        np.testing.assert_allclose(found[name].read(), exact[name].read(), atol=0.02, err_msg=name)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_dequantized_weights_equal_those_of_transformers(tmp_path: Path, architecture: str) -> None:
    directory = write_tiny_hf_model(tmp_path / "hf", architecture=architecture, vocab=280)  # a token for each row
    path = write_tiny_gguf(directory, tmp_path / "a.gguf", quantization=gguf.GGMLQuantizationType.Q4_1)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32).state_dict()
    ours = read_gguf(path).tensors
    assert ours.keys() == theirs.keys() - {"lm_head.weight"}
    for name, tensor in ours.items():
        np.testing.assert_array_equal(tensor.read(), theirs[name].numpy(), err_msg=name)


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"tokenizer.ggml.pre": "made-up"}, "made-up"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.model llama"),
        ({"split.count": 3}, "split.count"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
        ({"llama.expert_count": 8}, "expert_count"),
        ({"llama.attention.sliding_window": 512}, "sliding_window"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count"),
        ({"general.architecture": "mamba"}, "mamba"),
        ({"llama.block_count": 0}, "block_count"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, tiny: Path, metadata: dict[str, str | int], named: str) -> None:
    path = write_tiny_gguf(tiny, tmp_path / "a.gguf", metadata=metadata)
    with pytest.raises(ModelError, match=named):
        read_gguf(path)


def test_an_unknown_tensor_is_named(tmp_path: Path, tiny: Path) -> None:
    stray = {"blk.0.attn_sinks.weight": np.ones(4, dtype=np.float32)}
    source = read_gguf(write_tiny_gguf(tiny, tmp_path / "a.gguf", tensors=stray))
    with pytest.raises(ModelError, match=r"blk\.0\.attn_sinks\.weight"):
        checked_tensors(source.config, source.tensors)


@pytest.mark.parametrize("kept", [0, 3, 200, 20_000, -100])
def test_a_truncated_file_is_refused_by_name(tmp_path: Path, tiny: Path, kept: int) -> None:
    path = write_tiny_gguf(tiny, tmp_path / "a.gguf")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"a\.gguf is truncated"):
        read_gguf(path)


def test_scaling_in_the_metadata_is_read(tmp_path: Path, tiny: Path) -> None:
    linear: dict[str, str | int | float | bool] = {
        "llama.rope.scaling.type": "linear",
        "llama.rope.scaling.factor": 4.0,
    }
    assert read_gguf(write_tiny_gguf(tiny, tmp_path / "a.gguf", metadata=linear)).config.rope_scaling == RopeScaling(
        "linear", 4.0
    )
    yarn = linear | {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.original_context_length": 512}
    scaling = read_gguf(write_tiny_gguf(tiny, tmp_path / "b.gguf", metadata=yarn)).config.rope_scaling
    assert (scaling.kind, scaling.original_context) == ("yarn", 512)
    assert scaling.attention_factor == pytest.approx(1.1386294)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_factors_of_llama_3_are_recognized(factor: float) -> None:
    scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    config = LlamaConfig(hidden_size=128, num_attention_heads=1, rope_theta=500000.0, rope_scaling=scaling)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500000.0 ** -(np.arange(0, 128, 2) / 128)
    factors = (plain / scaled.numpy()).astype(np.float32)
    assert llama3_scaling(factors, 500000.0) == RopeScaling("llama3", pytest.approx(factor), 1.0, 4.0, 8192)


def test_rotary_factors_of_another_kind_are_refused(tmp_path: Path, tiny: Path) -> None:
    factors = {"rope_freqs.weight": np.linspace(1, 8, 8, dtype=np.float32)}
    with pytest.raises(ModelError, match=r"rope_freqs\.weight"):
        read_gguf(write_tiny_gguf(tiny, tmp_path / "a.gguf", tensors=factors))
