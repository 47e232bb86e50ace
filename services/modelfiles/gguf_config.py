"""GGUF metadata into a `ModelConfig`; what it asks for and we do not have is refused by name.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Numbers are stored as float32, so they are read as the
shortest decimal that gives the same float32: 1e-05 and not 9.999999747378752e-06. Mistral models are stored as `llama`,
which they are but for a sliding window; with one, a model is served up to its length, where it is full attention.
"""

from dataclasses import dataclass

import numpy as np

from services.core.model_config import ModelConfig, RopeScaling
from services.modelfiles.errors import ModelError
from services.modelfiles.fields import Fields
from services.modelfiles.ggml_blocks import Floats
from services.modelfiles.hf_config import checked_config, within_window
from services.modelfiles.rope_scaling import llama3_scaling, scaling_from_gguf, stretched_context

_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_MUST_BE_OFF = (
    "expert_count",
    "attention.scale",
    "attention.clamp_kqv",
    "attention.temperature_scale",
    "rope.scaling.alpha",
    "rope.scaling.yarn_log_multiplier",
)


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What a GGUF file says through its tensors only."""

    vocab: int
    """Rows of the embedding."""
    has_head: bool
    """Whether there is a head beside the embedding."""
    has_input_bias: bool
    """Whether q, k or v of any layer has a bias."""
    has_output_bias: bool
    """Whether the output projection of any layer has a bias."""
    rope_factors: Floats | None
    """`rope_freqs.weight`, `[head_dim / 2]`."""


def config_from_gguf(metadata: Fields, facts: TensorFacts) -> ModelConfig:
    """Raises `ModelError` naming the key that is missing, malformed or not supported."""
    architecture = metadata.text("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise ModelError(
            f"{metadata.origin}: architecture {architecture} is not supported; {', '.join(_ARCHITECTURES)} are"
        )
    own = _of_architecture(metadata, architecture)
    heads, hidden = own.count("attention.head_count"), own.count("embedding_length")
    head_dim = own.count("attention.key_length", max(hidden // heads, 1))
    if own.count("rope.dimension_count", head_dim) != head_dim:
        raise ModelError(f"{own.origin}: rotation of only a part of a head (rope.dimension_count) is not supported")
    theta = own.number("rope.freq_base", 10000.0)
    scaling = _scaling(own, facts, theta)
    config = ModelConfig(
        architecture=architecture,
        layers=own.count("block_count"),
        hidden=hidden,
        intermediate=own.count("feed_forward_length"),
        heads=heads,
        kv_heads=own.count("attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab=facts.vocab,
        context=within_window(
            stretched_context(scaling, own.count("context_length")), own.whole("attention.sliding_window", 0) or None
        ),
        norm_eps=own.number("attention.layer_norm_rms_epsilon"),
        rope_theta=theta,
        rope_scaling=scaling,
        tied_embeddings=not facts.has_head,
        attention_bias=architecture == "qwen2" or facts.has_input_bias,
        output_bias=facts.has_output_bias,
        qk_norm=architecture == "qwen3",
    )
    return checked_config(config, metadata.origin)


def _scaling(own: Fields, facts: TensorFacts, theta: float) -> RopeScaling:
    return scaling_from_gguf(own) if facts.rope_factors is None else llama3_scaling(facts.rope_factors, theta)


def _of_architecture(metadata: Fields, architecture: str) -> Fields:
    prefix = f"{architecture}."
    values = {key.removeprefix(prefix): value for key, value in metadata.values.items() if key.startswith(prefix)}
    shortest = {
        key: float(str(np.float32(value))) if isinstance(value, float) else value for key, value in values.items()
    }
    own = Fields(shortest, metadata.origin)
    for name in _MUST_BE_OFF:
        if own.get(name):
            raise ModelError(f"{metadata.origin}: {name} is not supported")
    return own
