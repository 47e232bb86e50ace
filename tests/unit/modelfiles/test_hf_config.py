from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from services.core.model_config import RopeScaling
from services.modelfiles.errors import ModelError
from services.modelfiles.fields import Fields
from services.modelfiles.hf_config import config_from_hf

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128}


def read(**changes: object) -> Any:
    return config_from_hf(Fields(LLAMA | changes, "config.json"))


def test_a_llama_configuration_is_read() -> None:
    config = read()
    assert (config.architecture, config.layers, config.head_dim, config.kv_heads) == ("llama", 2, 16, 2)
    assert (config.rope_theta, config.rope_scaling, config.context) == (5000.0, RopeScaling(), 512)
    assert not config.tied_embeddings and not config.attention_bias


def test_qwen2_has_biases_and_may_declare_an_unused_window() -> None:
    config = read(architectures=["Qwen2ForCausalLM"], use_sliding_window=False, sliding_window=4096)
    assert config.architecture == "qwen2" and config.attention_bias


def test_qwen3_normalizes_q_and_k_and_has_heads_of_any_width() -> None:
    config = read(architectures=["Qwen3ForCausalLM"])
    assert (config.architecture, config.qk_norm, config.attention_bias, config.head_dim) == ("qwen3", True, False, 128)
    assert read(architectures=["Qwen3ForCausalLM"], head_dim=96).head_dim == 96
    assert not read().qk_norm


def test_a_model_is_known_by_its_type_where_no_class_is_named() -> None:
    for architecture in ("llama", "mistral", "qwen2", "qwen3"):
        assert read(architectures=None, model_type=architecture).architecture == architecture


@pytest.mark.parametrize(
    ("changes", "biases"),
    [
        ({}, (False, False)),
        ({"attention_bias": True}, (True, True)),
        ({"architectures": ["Qwen3ForCausalLM"], "attention_bias": True}, (True, True)),
        ({"architectures": ["Qwen3ForCausalLM"]}, (False, False)),
        ({"architectures": ["Qwen2ForCausalLM"], "attention_bias": False}, (True, False)),
        ({"architectures": ["MistralForCausalLM"], "attention_bias": False}, (False, False)),
    ],
)
def test_which_projections_have_biases(changes: dict[str, object], biases: tuple[bool, bool]) -> None:
    config = read(**changes)
    assert (config.attention_bias, config.output_bias) == biases


SLIDING = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}


@pytest.mark.parametrize(
    ("architecture", "changes", "context"),
    [
        ("Mistral", {"sliding_window": 64}, 64),
        ("Mistral", {"sliding_window": 4096}, 512),
        ("Mistral", {"sliding_window": None}, 512),
        ("Mistral", {}, 512),
        ("Qwen2", SLIDING, 64),
        ("Qwen3", SLIDING, 64),
        ("Qwen3", SLIDING | {"use_sliding_window": False}, 512),
        ("Qwen2", SLIDING | {"max_window_layers": 2}, 512),  # as many as there are layers
        ("Qwen2", SLIDING | {"max_window_layers": 0}, 64),
        ("Qwen3", SLIDING | {"layer_types": ["full_attention", "sliding_attention"]}, 64),
        ("Qwen3", SLIDING | {"layer_types": ["full_attention", "full_attention"]}, 512),
        ("Llama", {"sliding_window": 64}, 512),
    ],
)
def test_a_model_is_served_up_to_the_length_of_its_window(
    architecture: str, changes: dict[str, object], context: int
) -> None:
    assert read(architectures=[f"{architecture}ForCausalLM"], **changes).context == context


def test_a_window_also_ends_a_stretched_context() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert read(rope_scaling=yarn).context == 2048
    mistral = read(architectures=["MistralForCausalLM"], rope_scaling=yarn, sliding_window=1024)
    assert mistral.context == 1024


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": None, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5000.0, **LLAMA3}},
    ],
)
def test_every_spelling_of_rotary_scaling_means_the_same(spelling: dict[str, object]) -> None:
    config = read(**spelling)
    assert config.rope_theta == 5000.0
    assert config.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 128)


@pytest.mark.parametrize("extra", [{}, {"attention_factor": 1.3}, {"mscale": 0.7, "mscale_all_dim": 1.0}])
def test_the_yarn_magnitude_is_that_of_transformers(extra: dict[str, float]) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, **extra}
    ours = read(rope_scaling=scaling)
    theirs = LlamaConfig(**{**LLAMA, "rope_scaling": scaling})
    _, attention_factor = ROPE_INIT_FUNCTIONS["yarn"](theirs, torch.device("cpu"))
    assert ours.rope_scaling.attention_factor == pytest.approx(attention_factor)
    assert ours.context == 1024


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "mrope", "made-up"])
def test_another_kind_of_rotary_scaling_is_refused_by_name(kind: str) -> None:
    with pytest.raises(ModelError, match=kind):
        read(rope_scaling={"rope_type": kind, "factor": 2.0})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"architectures": ["MistralForCausalLM"], "attention_bias": True}, "attention_bias"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 0}, "sliding_window"),
        ({"architectures": ["Qwen3ForCausalLM"], "layer_types": ["sliding_attention"]}, "use_sliding_window"),
        ({"architectures": ["Qwen3ForCausalLM"], "layer_types": ["linear_attention"]}, "layer_types"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"num_key_value_heads": 3}, "multiple"),
    ],
)
def test_what_is_wrong_or_not_supported_is_named(changes: dict[str, object], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        read(**changes)
