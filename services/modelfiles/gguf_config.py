"""GGUF metadata into a `ModelConfig`; what it asks for and we do not have is refused by name.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Numbers are stored as float32, so they are read as the
shortest decimal that gives the same float32: 1e-05 and not 9.999999747378752e-06.
"""

import math

import numpy as np

from services.core.model_config import ModelConfig, RopeScaling
from services.modelfiles.errors import ModelError
from services.modelfiles.fields import Fields
from services.modelfiles.hf_config import checked_config, yarn_magnitude
from services.modelfiles.tensors import Floats

_ARCHITECTURES = ("llama", "qwen2")
_MUST_BE_OFF = ("expert_count", "attention.sliding_window")
_LLAMA3_ORIGINAL_CONTEXT = 8192
"""Of every published model that carries rotary factors (Llama 3.1, 3.2, 3.3); low and high factor are 1 and 4."""


def config_from_gguf(metadata: Fields, *, vocab: int, tied: bool, rope_factors: Floats | None) -> ModelConfig:
    """`vocab` and `tied` are read off the tensors; `rope_factors` is `rope_freqs.weight`, `[head_dim / 2]`.

    Raises `ModelError` naming the key that is missing, malformed or not supported.
    """
    architecture = metadata.text("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise ModelError(
            f"{metadata.origin}: architecture {architecture} is not supported; {' and '.join(_ARCHITECTURES)} are"
        )
    own = _of_architecture(metadata, architecture)
    heads, hidden = own.count("attention.head_count"), own.count("embedding_length")
    head_dim = own.count("attention.key_length", max(hidden // heads, 1))
    if own.count("rope.dimension_count", head_dim) != head_dim:
        raise ModelError(f"{own.origin}: rotation of only a part of a head (rope.dimension_count) is not supported")
    theta = own.number("rope.freq_base", 10000.0)
    config = ModelConfig(
        architecture=architecture,
        layers=own.count("block_count"),
        hidden=hidden,
        intermediate=own.count("feed_forward_length"),
        heads=heads,
        kv_heads=own.count("attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab=vocab,
        context=own.count("context_length"),
        norm_eps=own.number("attention.layer_norm_rms_epsilon"),
        rope_theta=theta,
        rope_scaling=_scaling(own) if rope_factors is None else llama3_scaling(rope_factors, theta),
        tied_embeddings=tied,
        attention_bias=architecture == "qwen2",
    )
    return checked_config(config, metadata.origin)


def llama3_scaling(factors: Floats, theta: float) -> RopeScaling:
    """The scaling whose divisors of the rotary frequencies are `factors`.

    A GGUF file stores the divisors instead of the parameters they come from; they are found by trying the published
    ones. Raises `ModelError` if those give other divisors.
    """
    scaling = RopeScaling(
        kind="llama3",
        factor=float(np.max(factors)),
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_context=_LLAMA3_ORIGINAL_CONTEXT,
    )
    if not np.allclose(factors, llama3_factors(scaling, theta, 2 * factors.size), rtol=1e-3):
        raise ModelError("rope_freqs.weight holds rotary factors of an unknown kind")
    return scaling


def llama3_factors(scaling: RopeScaling, theta: float, head_dim: int) -> Floats:
    """What each rotary frequency is divided by, `[head_dim / 2]`: 1 for short waves, `factor` for long ones, and
    between them a blend (transformers `_compute_llama3_parameters`)."""
    wave_lengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    turns = scaling.original_context / wave_lengths
    blend = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0)
    return (1 / ((1 - blend) / scaling.factor + blend)).astype(np.float32)


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


def _scaling(own: Fields) -> RopeScaling:
    old_factor = own.number("rope.scale_linear", 1.0)
    kind = own.text("rope.scaling.type", "none" if old_factor == 1.0 else "linear")
    if kind == "none":
        return RopeScaling()
    factor = own.number("rope.scaling.factor", old_factor)
    if kind == "linear":
        return RopeScaling(kind="linear", factor=factor)
    if kind == "yarn":
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_context=own.count("rope.scaling.original_context_length", own.count("context_length")),
            attention_factor=own.number("rope.scaling.attn_factor", 1.0) * yarn_magnitude(factor),
            beta_fast=own.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=own.number("rope.scaling.yarn_beta_slow", 1.0),
        )
    raise ModelError(f"{own.origin}: rope.scaling.type {kind} is not supported; none, linear and yarn are")
