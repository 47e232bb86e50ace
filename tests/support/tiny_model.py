"""A small random Hugging Face model directory: real formats end to end, milliseconds to write, no download.

Weights are drawn so that greedy output wanders instead of repeating one token, and so that every tensor matters (norms
are not ones, biases not zeros): a forgotten one changes the output. `transformers` loads the directory as it is.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 0, 1 and 2, as in SmolLM2: unknown and end of text, beginning, end of turn."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""By architecture, as config.json names them."""

_WORDS = ("Ġthe", "Ġa", "Ġof", "Ġto", "Ġand", "ing", "er", "Ġin", "Ġis", "Ġwas", "Ġhe", "Ġfor", "Ġon", "at", "or", "en")

Arrays = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


def write_tiny_hf_model(
    directory: Path,
    *,
    architecture: str = "llama",
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    vocab: int = 320,
    context: int = 2048,
    seed: int = 0,
    tied: bool = True,
    rope_scaling: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """Write config.json, model.safetensors (float32), tokenizer.json and tokenizer_config.json; returns `directory`.

    `vocab` is at least 259 (the bytes and the specials); what is over becomes merged pieces, and past those, rows
    without a token, as padded vocabularies have. `rope_scaling` goes into config.json as it is, and so do `settings`:
    `head_dim`, `attention_bias`, `sliding_window` and so on.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": [CLASSES[architecture]],
        "model_type": architecture,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": rope_scaling,
        "hidden_act": "silu",
        "tie_word_embeddings": tied,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
        # Qwen3 takes 128 where nothing is said, whatever the other sizes are.
        **({"head_dim": hidden // heads} if architecture == "qwen3" else {}),
        **settings,
    }
    _write_json(directory / "config.json", config)
    save_file(tiny_weights(config, seed), directory / "model.safetensors", metadata={"format": "pt"})
    tiny_tokenizer(vocab).save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIALS[1],
            "eos_token": SPECIALS[2],
            "unk_token": SPECIALS[0],
            "model_max_length": context,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    return directory


def tiny_weights(config: dict[str, Any], seed: int) -> Arrays:
    """Random weights under Hugging Face's names for a config.json of this shape."""
    rng = np.random.default_rng(seed)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = head_dim * config["num_attention_heads"], head_dim * config["num_key_value_heads"]
    is_qwen2, is_biased = config["model_type"] == "qwen2", config.get("attention_bias", False)

    def matrix(out: int, fan_in: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.asarray(rng.standard_normal((out, fan_in)) * 1.4 / fan_in**0.5, dtype=np.float32)

    def norm(scale: float = 1.0, width: int = hidden) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.asarray(scale * rng.uniform(0.5, 1.5, width), dtype=np.float32)

    def bias(width: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return rng.uniform(-0.5, 0.5, width).astype(np.float32)

    weights: Arrays = {"model.embed_tokens.weight": matrix(vocab, hidden), "model.norm.weight": norm(2.0)}
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = matrix(vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        weights[at + "input_layernorm.weight"] = norm()
        weights[at + "post_attention_layernorm.weight"] = norm()
        for letter, out in {"q": queries, "k": keys, "v": keys}.items():
            weights[at + f"self_attn.{letter}_proj.weight"] = matrix(out, hidden)
            if is_qwen2 or is_biased:
                weights[at + f"self_attn.{letter}_proj.bias"] = bias(out)
        weights[at + "self_attn.o_proj.weight"] = matrix(hidden, queries)
        weights[at + "mlp.gate_proj.weight"] = matrix(inner, hidden)
        weights[at + "mlp.up_proj.weight"] = matrix(inner, hidden)
        weights[at + "mlp.down_proj.weight"] = matrix(hidden, inner)
        if is_biased and not is_qwen2:
            weights[at + "self_attn.o_proj.bias"] = bias(hidden)
        if config["model_type"] == "qwen3":
            weights[at + "self_attn.q_norm.weight"] = norm(width=head_dim)
            weights[at + "self_attn.k_norm.weight"] = norm(width=head_dim)
    return weights


def tiny_tokenizer(vocab: int) -> Tokenizer:
    """Byte-level BPE: the specials, the 256 bytes, then merged pieces of common English while there is room."""
    pieces = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges: list[tuple[str, str]] = []
    for word in _WORDS:
        for end in range(2, len(word) + 1):
            if word[:end] not in pieces and len(pieces) < vocab:
                merges.append((word[: end - 1], word[end - 1]))
                pieces.append(word[:end])
    tokenizer = Tokenizer(models.BPE(vocab={piece: at for at, piece in enumerate(pieces)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(special, special=True, normalized=False) for special in SPECIALS])
    return tokenizer


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")
