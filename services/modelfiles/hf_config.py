"""config.json of a Hugging Face model into a `ModelConfig`; what it asks for and we do not have is refused by name.

Rotary scaling stands in `rope_scaling`, or as transformers 5 has it in `rope_parameters`, which holds `rope_theta` too.

A model with a sliding window (Mistral 7B v0.1) is served up to the length of its window, where it is the same as full
attention; `sliding_window` null or absent is no window.
"""

from services.core.model_config import ModelConfig
from services.modelfiles.errors import ModelError
from services.modelfiles.fields import Fields
from services.modelfiles.rope_scaling import scaling_from_hf, stretched_context

_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}

_MUST_BE_OFF = ("mlp_bias", "quantization_config")
_LAYER_TYPES = {"full_attention", "sliding_attention"}

# What transformers takes where a Qwen configuration is silent.
_QWEN3_HEAD_DIM = 128
_QWEN_WINDOW = 4096
_QWEN_LAYERS_WITHOUT_WINDOW = 28


def config_from_hf(fields: Fields) -> ModelConfig:
    """Raises `ModelError` naming the field that is missing, malformed or not supported."""
    architecture = _architecture(fields)
    for name in _MUST_BE_OFF:
        if fields.get(name):
            raise ModelError(f"{fields.origin}: {name} is not supported")
    if fields.text("hidden_act", "silu") != "silu":
        raise ModelError(f"{fields.origin}: only hidden_act silu is supported")
    heads, hidden = fields.count("num_attention_heads"), fields.count("hidden_size")
    input_bias, output_bias = _attention_biases(fields, architecture)
    rope = fields.fields("rope_parameters" if fields.get("rope_parameters") else "rope_scaling")
    scaling = scaling_from_hf(rope, fields.count("max_position_embeddings"))
    config = ModelConfig(
        architecture=architecture,
        layers=fields.count("num_hidden_layers"),
        hidden=hidden,
        intermediate=fields.count("intermediate_size"),
        heads=heads,
        kv_heads=fields.count("num_key_value_heads", heads),
        head_dim=fields.count("head_dim", _QWEN3_HEAD_DIM if architecture == "qwen3" else max(hidden // heads, 1)),
        vocab=fields.count("vocab_size"),
        context=within_window(
            stretched_context(scaling, fields.count("max_position_embeddings")), _sliding_window(fields, architecture)
        ),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=rope.number("rope_theta", fields.number("rope_theta", 10000.0)),
        rope_scaling=scaling,
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=input_bias,
        output_bias=output_bias,
        qk_norm=architecture == "qwen3",
    )
    return checked_config(config, fields.origin)


def checked_config(config: ModelConfig, origin: str) -> ModelConfig:
    """The same configuration; raises `ModelError` if its numbers cannot belong together."""
    if config.heads % config.kv_heads:
        raise ModelError(f"{origin}: the number of attention heads must be a multiple of the key and value heads")
    if config.head_dim % 2:
        raise ModelError(f"{origin}: the head dimension must be even")
    return config


def within_window(context: int, window: int | None) -> int:
    """The length up to which attention through a sliding window is full attention, and the model is served."""
    return context if window is None else min(context, window)


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
    raise ModelError(f"{fields.origin}: architecture {asked} is not supported; {', '.join(_ARCHITECTURES)} are")


def _attention_biases(fields: Fields, architecture: str) -> tuple[bool, bool]:
    """Whether q, k and v have biases, and whether the output projection has one.

    Qwen2 has the first whatever the flag says; elsewhere the flag means both.
    """
    if architecture == "qwen2":
        return True, False
    is_biased = fields.flag("attention_bias", False)
    if is_biased and architecture == "mistral":
        raise ModelError(f"{fields.origin}: attention_bias is not supported for this architecture")
    return is_biased, is_biased


def _sliding_window(fields: Fields, architecture: str) -> int | None:
    """The window of those layers that have one, in tokens; None if no layer has."""
    if architecture == "mistral":
        return None if fields.get("sliding_window") is None else fields.count("sliding_window")
    types = _layer_types(fields)
    if architecture == "llama":
        if "sliding_attention" in types:
            raise ModelError(f"{fields.origin}: layer_types other than full_attention are not supported")
        return None
    has_window = fields.flag("use_sliding_window", False)
    if "sliding_attention" in types and not has_window:
        raise ModelError(f"{fields.origin}: layer_types has sliding_attention, which use_sliding_window turns off")
    first = fields.whole("max_window_layers", _QWEN_LAYERS_WITHOUT_WINDOW)
    slides = "sliding_attention" in types if types else first < fields.count("num_hidden_layers")
    return fields.count("sliding_window", _QWEN_WINDOW) if has_window and slides else None


def _layer_types(fields: Fields) -> frozenset[str]:
    """Empty if the configuration leaves them to other fields."""
    listed = fields.get("layer_types")
    types = frozenset(map(str, listed)) if isinstance(listed, list) else frozenset[str]()
    unknown = types - _LAYER_TYPES
    if unknown:
        raise ModelError(f"{fields.origin}: layer_types other than {' and '.join(sorted(_LAYER_TYPES))} are unknown")
    return types
