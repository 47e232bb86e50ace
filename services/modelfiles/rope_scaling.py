"""How a model stretches its rotary positions, from the spellings of config.json and of GGUF metadata.

    kind      config.json                      GGUF
    default   absent, or `default`             `rope.scaling.type` absent or `none`
    linear    `linear`                         `linear`, or the older `rope.scale_linear`
    llama3    `llama3`                         the tensor `rope_freqs.weight`
    yarn      `yarn`                           `yarn`

Any other kind (`dynamic` and `longrope` among them) is refused by name. Formulas: transformers
`modeling_rope_utils.py`.
"""

import math

import numpy as np

from services.core.model_config import RopeScaling
from services.modelfiles.errors import ModelError
from services.modelfiles.fields import Fields
from services.modelfiles.ggml_blocks import Floats

_LLAMA3_ORIGINAL_CONTEXT = 8192
"""Of every published model that carries rotary factors (Llama 3.1, 3.2, 3.3); low and high factor are 1 and 4."""


def scaling_from_hf(rope: Fields, context: int) -> RopeScaling:
    """`rope` is the object that config.json has for it, `context` what it says of the model's length.

    Reads the old spelling of the kind (`type`) and the newer one (`rope_type`). Raises `ModelError` naming the kind or
    field that is missing, malformed or not supported.
    """
    kind = rope.text("rope_type", rope.text("type", "default"))
    if rope.number("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(f"{rope.origin}: partial_rotary_factor is not supported")
    if kind == "default":
        return RopeScaling()
    if kind == "linear":
        return RopeScaling(kind="linear", factor=rope.number("factor"))
    if kind == "llama3":
        return _llama3_from_hf(rope)
    if kind == "yarn":
        return _yarn_from_hf(rope, context)
    raise ModelError(f"{rope.origin}: rope type {kind} is not supported; default, linear, llama3 and yarn are")


def scaling_from_gguf(own: Fields) -> RopeScaling:
    """`own` is the metadata of the architecture. Raises `ModelError` naming the kind or key at fault."""
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


def stretched_context(scaling: RopeScaling, context: int) -> int:
    """The length that a model serves: files of YaRN models may say how long the model was before stretching."""
    return max(context, int(scaling.original_context * scaling.factor)) if scaling.kind == "yarn" else context


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


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """What cos and sin are multiplied by when positions stretch by `factor` (YaRN, arXiv 2309.00071, section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _llama3_from_hf(rope: Fields) -> RopeScaling:
    return RopeScaling(
        kind="llama3",
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_context=rope.count("original_max_position_embeddings"),
    )


def _yarn_from_hf(rope: Fields, context: int) -> RopeScaling:
    if not rope.flag("truncate", True):
        raise ModelError(f"{rope.origin}: truncate false is not supported")
    factor = rope.number("factor")
    attention = yarn_magnitude(factor)
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        attention = yarn_magnitude(factor, rope.number("mscale")) / yarn_magnitude(
            factor, rope.number("mscale_all_dim")
        )
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_context=rope.count("original_max_position_embeddings", context),
        attention_factor=rope.number("attention_factor", attention),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
    )
