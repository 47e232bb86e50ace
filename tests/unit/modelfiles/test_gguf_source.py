from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from services.core.model_config import RopeScaling
from services.modelfiles.errors import ModelError
from services.modelfiles.gguf_source import read_gguf
from services.modelfiles.hf_source import read_hf
from services.modelfiles.rope_scaling import llama3_scaling
from services.modelfiles.stored_tensor import Form
from services.modelfiles.tensors import checked_tensors
from services.modelfiles.tokenizer import Tokenizer
from tests.support.tiny_gguf import write_tiny_gguf
from tests.support.tiny_model import CLASSES, write_tiny_hf_model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", CLASSES)
def test_a_gguf_file_and_the_directory_it_was_made_from_are_one_model(
    tmp_path: Path, architecture: str, tied: bool
) -> None:
    directory = write_tiny_hf_model(tmp_path / "hf", architecture=architecture, tied=tied, head_dim=24)
    theirs, ours = read_hf(directory), read_gguf(write_tiny_gguf(directory, tmp_path / "a.gguf"))
    assert replace(ours.config, architecture=architecture) == theirs.config
    assert ours.vocabulary == theirs.vocabulary
    assert ours.chat_template == theirs.chat_template
    expected = checked_tensors(theirs.config, theirs.tensors)
    found = checked_tensors(ours.config, ours.tensors)
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        np.testing.assert_array_equal(tensor.read().floats(), expected[name].read().floats(), err_msg=name)


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_biases_are_known_by_their_tensors(tmp_path: Path, architecture: str) -> None:
    directory = write_tiny_hf_model(tmp_path / "hf", architecture=architecture, attention_bias=True)
    theirs, ours = read_hf(directory), read_gguf(write_tiny_gguf(directory, tmp_path / "a.gguf"))
    assert ours.config == theirs.config
    assert ours.config.attention_bias and ours.config.output_bias
    for name, tensor in checked_tensors(ours.config, ours.tensors).items():
        np.testing.assert_array_equal(tensor.read().floats(), theirs.tensors[name].read().floats(), err_msg=name)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ],
    ids=lambda scaling: scaling["rope_type"],
)
def test_both_files_of_a_model_stretch_positions_alike(tmp_path: Path, scaling: dict[str, Any]) -> None:
    directory = write_tiny_hf_model(tmp_path / "hf", rope_scaling=scaling, head_dim=64)
    theirs, ours = read_hf(directory).config, read_gguf(write_tiny_gguf(directory, tmp_path / "a.gguf")).config
    assert ours == theirs
    assert ours.rope_scaling.kind == scaling["rope_type"]


KEPT = {
    gguf.GGMLQuantizationType.F16: Form.FLOAT16,
    gguf.GGMLQuantizationType.BF16: Form.BFLOAT16,
    gguf.GGMLQuantizationType.Q4_0: Form.Q4_0,
    gguf.GGMLQuantizationType.Q4_1: Form.Q4_1,
    gguf.GGMLQuantizationType.Q8_0: Form.Q8_0,
}


@pytest.mark.parametrize("kind", KEPT, ids=lambda kind: kind.name)
def test_matrices_stay_in_the_form_of_the_file(tmp_path: Path, tiny: Path, kind: gguf.GGMLQuantizationType) -> None:
    path = write_tiny_gguf(tiny, tmp_path / "a.gguf", quantization=kind)
    exact, found = read_hf(tiny).tensors, read_gguf(path).tensors
    for name, tensor in found.items():
        stored = tensor.read()
        assert stored.form is tensor.form is (KEPT[kind] if len(tensor.shape) == 2 else Form.FLOAT32)
        # Quantizing works row by row, so that it does not matter whether rows are put back in order before or after.
        through = gguf.quants.dequantize(gguf.quants.quantize(exact[name].read().floats(), kind), kind)
        expected = through if len(tensor.shape) == 2 else exact[name].read().floats()
        assert stored.floats().tobytes() == np.ascontiguousarray(expected).tobytes(), name


def test_kinds_that_the_engine_cannot_multiply_are_read_as_float32(tmp_path: Path, tiny: Path) -> None:
    path = write_tiny_gguf(tiny, tmp_path / "a.gguf", quantization=gguf.GGMLQuantizationType.Q5_1)
    exact, found = read_hf(tiny).tensors, read_gguf(path).tensors
    for name, tensor in found.items():
        assert tensor.read().form is tensor.form is Form.FLOAT32
        np.testing.assert_allclose(tensor.read().floats(), exact[name].read().floats(), atol=0.1, err_msg=name)


def test_a_k_quant_is_dequantized_as_the_library_does(tmp_path: Path) -> None:
    directory = write_tiny_hf_model(tmp_path / "hf", hidden=256)
    kind = gguf.GGMLQuantizationType.Q6_K
    raw = np.random.default_rng(5).integers(0, 60, (256, 210), dtype=np.uint8)
    path = write_tiny_gguf(directory, tmp_path / "a.gguf", raw={"blk.1.attn_output.weight": (kind, raw)})
    stored = read_gguf(path).tensors["model.layers.1.self_attn.o_proj.weight"].read()
    assert stored.form is Form.FLOAT32
    assert stored.data.tobytes() == gguf.quants.dequantize(raw, kind).tobytes()


# transformers does not read the width of a Qwen3's heads from such a file, and takes 128.
@pytest.mark.parametrize(("architecture", "head_dim"), [("llama", 16), ("qwen2", 16), ("qwen3", 128)])
def test_dequantized_weights_equal_those_of_transformers(tmp_path: Path, architecture: str, head_dim: int) -> None:
    shape = {"head_dim": head_dim, "vocab": 280}  # a token for each row
    directory = write_tiny_hf_model(tmp_path / "hf", architecture=architecture, **shape)
    path = write_tiny_gguf(directory, tmp_path / "a.gguf", quantization=gguf.GGMLQuantizationType.Q4_1)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32).state_dict()
    ours = read_gguf(path).tensors
    assert ours.keys() == theirs.keys() - {"lm_head.weight"}
    for name, tensor in ours.items():
        np.testing.assert_array_equal(tensor.read().floats(), theirs[name].numpy(), err_msg=name)


def test_a_window_in_the_metadata_ends_the_context(tmp_path: Path, tiny: Path) -> None:
    for window, context in ((512, 512), (0, 2048), (4096, 2048)):
        path = tmp_path / f"{window}.gguf"
        write_tiny_gguf(tiny, path, metadata={"llama.attention.sliding_window": window})
        assert read_gguf(path).config.context == context


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"tokenizer.ggml.pre": "made-up"}, "made-up"),
        ({"tokenizer.ggml.model": "bert"}, "tokenizer.ggml.model bert"),
        ({"split.count": 3}, "split.count"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
        ({"llama.expert_count": 8}, "expert_count"),
        ({"llama.attention.sliding_window": "512"}, "sliding_window"),
        ({"llama.attention.temperature_scale": 0.1}, "temperature_scale"),
        ({"llama.rope.scaling.alpha": 2.0}, "rope.scaling.alpha"),
        ({"general.architecture": "mistral3"}, "mistral3"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count"),
        ({"general.architecture": "mamba"}, "mamba"),
        ({"llama.block_count": 0}, "block_count"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, tiny: Path, metadata: dict[str, str | int], named: str) -> None:
    path = write_tiny_gguf(tiny, tmp_path / "a.gguf", metadata=metadata)
    with pytest.raises(ModelError, match=named):
        read_gguf(path)


def test_a_mistral_file_with_its_own_tokenizer_is_read(tmp_path: Path) -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁hi", "hi", "▁", "h", "i"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 5,
        "tokenizer.ggml.scores": [0.0] * 259 + [-1.0, -2.0, -3.0, -4.0, -5.0],
    }
    directory = write_tiny_hf_model(tmp_path / "hf", architecture="mistral", vocab=len(pieces))
    model = read_gguf(write_tiny_gguf(directory, tmp_path / "a.gguf", metadata=metadata))
    assert (model.vocabulary.bos_id, model.vocabulary.add_bos, model.vocabulary.stop_ids) == (1, True, {2})
    tokenizer = Tokenizer(model.tokenizer_json)
    assert [pieces[token] for token in tokenizer.encode("hi é")] == ["▁hi", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("hi é")) == "hi é"


def test_a_vocabulary_larger_than_the_table_is_refused(tmp_path: Path, tiny: Path) -> None:
    pieces = [chr(0x4E00 + at) for at in range(400)]
    more = {
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [1] * 400,
        "tokenizer.ggml.merges": [f"{pieces[0]} {pieces[1]}"],
    }
    more["tokenizer.ggml.tokens"][2] = pieces[0] + pieces[1]
    with pytest.raises(ModelError, match="more tokens than token_embd"):
        read_gguf(write_tiny_gguf(tiny, tmp_path / "a.gguf", metadata=more))


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


def test_a_bias_of_only_some_layers_is_missing_in_the_others(tmp_path: Path, tiny: Path) -> None:
    one = {"blk.0.attn_q.bias": np.ones(64, dtype=np.float32)}
    source = read_gguf(write_tiny_gguf(tiny, tmp_path / "a.gguf", tensors=one))
    with pytest.raises(ModelError, match=r"missing.*layers\.0\.self_attn\.k_proj\.bias"):
        checked_tensors(source.config, source.tensors)


def test_rotary_factors_of_another_kind_are_refused(tmp_path: Path, tiny: Path) -> None:
    factors = {"rope_freqs.weight": np.linspace(1, 8, 8, dtype=np.float32)}
    with pytest.raises(ModelError, match=r"rope_freqs\.weight"):
        read_gguf(write_tiny_gguf(tiny, tmp_path / "a.gguf", tensors=factors))
