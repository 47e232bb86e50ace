"""config.json of a Hugging Face model into a `ModelConfig`; what it asks for and we do not have is refused by name.

Reads the old spelling of rotary scaling (`rope_scaling` with `type`), the newer one (`rope_type`) and that of
transformers 5 (`rope_parameters`, which holds `rope_theta` too). Formulas: transformers `modeling_rope_utils.py`.
"""

import math
from dataclasses import replace

from services.core.model_config import ModelConfig, RopeScaling
from services.modelfiles.errors import ModelError
from services.modelfiles.fields import Fields

_ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}

_MUST_BE_OFF = ("attention_bias", "mlp_bias", "use_sliding_window", "quantization_config")


def config_from_hf(fields: Fields) -> ModelConfig:
    """Raises `ModelError` naming the field that is missing, malformed or not supported."""
    architecture = _architecture(fields)
    for name in _MUST_BE_OFF:
        if fields.get(name):
            raise ModelError(f"{fields.origin}: {name} is not supported")
    if fields.text("hidden_act", "silu") != "silu":
        raise ModelError(f"{fields.origin}: only hidden_act silu is supported")
    _require_full_attention(fields)
    heads, hidden = fields.count("num_attention_heads"), fields.count("hidden_size")
    config = ModelConfig(
        architecture=architecture,
        layers=fields.count("num_hidden_layers"),
        hidden=hidden,
        intermediate=fields.count("intermediate_size"),
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", heads),
        head_dim=fields.count("head_dim", max(hidden // heads, 1)),
        vocab=fields.count("vocab_size"),
        context=fields.count("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=_rope(fields).number("rope_theta", fields.number("rope_theta", 10000.0)),
        rope_scaling=RopeScaling(),
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=architecture == "qwen2",
    )
    return checked_config(_with_scaling(config, _rope(fields)), fields.origin)


def checked_config(config: ModelConfig, origin: str) -> ModelConfig:
    """The same configuration; raises `ModelError` if its numbers cannot belong together."""
    if config.heads % config.kv_heads:
        raise ModelError(f"{origin}: the number of attention heads must be a multiple of the key and value heads")
    if config.head_dim % 2:
        raise ModelError(f"{origin}: the head dimension must be even")
    return config


def _architecture(fields: Fields) -> str:
    declared = fields.get("architectures")
    names = declared if isinstance(declared, list) else []
    known = [_ARCHITECTURES[name] for name in names if name in _ARCHITECTURES]
    if known:
        return known[0]
    model_type = fields.text("model_type", "")
    if not names and model_type in _ARCHITECTURES.values():
        return model_type
    asked = ", ".join(str(name) for name in names) or model_type or "unnamed"
    raise ModelError(f"{fields.origin}: architecture {asked} is not supported; {' and '.join(_ARCHITECTURES)} are")


def _require_full_attention(fields: Fields) -> None:
    layer_types = fields.get("layer_types")
    if isinstance(layer_types, list) and set(layer_types) - {"full_attention"}:
        raise ModelError(f"{fields.origin}: layer_types other than full_attention are not supported")


def _rope(fields: Fields) -> Fields:
    return fields.fields("rope_parameters" if fields.get("rope_parameters") else "rope_scaling")


def _with_scaling(config: ModelConfig, rope: Fields) -> ModelConfig:
    kind = rope.text("rope_type", rope.text("type", "default"))
    if rope.number("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(f"{rope.origin}: partial_rotary_factor is not supported")
    if kind == "default":
        return config
    if kind == "linear":
        return replace(config, rope_scaling=RopeScaling(kind="linear", factor=rope.number("factor")))
    if kind == "llama3":
        return replace(config, rope_scaling=_llama3(rope))
    if kind == "yarn":
        scaling = _yarn(rope, config.context)
        stretched = int(scaling.original_context * scaling.factor)
        return replace(config, rope_scaling=scaling, context=max(config.context, stretched))
    raise ModelError(f"{rope.origin}: rope type {kind} is not supported; default, linear, llama3 and yarn are")


def _llama3(rope: Fields) -> RopeScaling:
    return RopeScaling(
        kind="llama3",
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_context=rope.count("original_max_position_embeddings"),
    )


def _yarn(rope: Fields, context: int) -> RopeScaling:
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


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """What cos and sin are multiplied by when positions stretch by `factor` (YaRN, arXiv 2309.00071, section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
