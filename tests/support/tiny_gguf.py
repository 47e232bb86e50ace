"""The tiny model as a GGUF file, written the way llama.cpp's converter does: its own names, interleaved q and k, a
Mistral as a Llama, and the rotary scaling of Llama 3 as a tensor of divisors."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_INTERLEAVED = ("llama", "mistral")
_CONTROL, _NORMAL = 3, 1


def write_tiny_gguf(
    hf_directory: Path,
    path: Path,
    *,
    metadata: Mapping[str, str | int | float | bool | list[Any]] | None = None,
    tensors: dict[str, np.ndarray[Any, Any]] | None = None,
    raw: Mapping[str, tuple[gguf.GGMLQuantizationType, np.ndarray[Any, Any]]] | None = None,
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> Path:
    """`hf_directory` is from `write_tiny_hf_model`. `metadata` and `tensors` are added, or replace what is there.

    Matrices are stored in `quantization`, vectors as float32; those of `raw` as the bytes `[rows, row bytes]` they are.
    """
    config = json.loads((hf_directory / "config.json").read_text())
    own = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer = gguf.GGUFWriter(path, own)
    values: dict[str, Any] = {
        f"{own}.block_count": config["num_hidden_layers"],
        f"{own}.context_length": config["max_position_embeddings"],
        f"{own}.embedding_length": config["hidden_size"],
        f"{own}.feed_forward_length": config["intermediate_size"],
        f"{own}.attention.head_count": config["num_attention_heads"],
        f"{own}.attention.head_count_kv": config["num_key_value_heads"],
        f"{own}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{own}.attention.key_length": head_dim,
        f"{own}.attention.value_length": head_dim,
        f"{own}.rope.freq_base": config["rope_theta"],
        **{f"{own}.rope.scaling.{key}": value for key, value in _scaling_metadata(config["rope_scaling"]).items()},
        **_tokenizer_metadata(hf_directory),
        **(metadata or {}),
    }
    for key, value in values.items():
        _add(writer, key, value)
    stored = {_gguf_name(name): _interleaved(name, array, config) for name, array in _weights(hf_directory).items()}
    if (config["rope_scaling"] or {}).get("rope_type") == "llama3":
        stored["rope_freqs.weight"] = _llama3_divisors(config["rope_scaling"], config["rope_theta"], head_dim)
    for name, array in (stored | (tensors or {})).items():
        kind = quantization if array.ndim == 2 else gguf.GGMLQuantizationType.F32
        stored_kind, content = (raw or {}).get(name) or (kind, gguf.quants.quantize(array, kind))
        writer.add_tensor(name, content, raw_dtype=stored_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _weights(directory: Path) -> dict[str, np.ndarray[Any, Any]]:
    return dict(load_file(directory / "model.safetensors"))


def _tokenizer_metadata(directory: Path) -> dict[str, Any]:
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    vocab = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocab,
        "tokenizer.ggml.token_type": [_CONTROL if piece in special else _NORMAL for piece in vocab],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": json.loads((directory / "tokenizer_config.json").read_text())["chat_template"],
    }


def _scaling_metadata(scaling: dict[str, Any] | None) -> dict[str, str | int | float]:
    """Under `rope.scaling`. There is no type for Llama 3, whose scaling is a tensor."""
    if scaling is None or scaling["rope_type"] in ("default", "llama3"):
        return {}
    names = {
        "rope_type": "type",
        "factor": "factor",
        "original_max_position_embeddings": "original_context_length",
        "beta_fast": "yarn_beta_fast",
        "beta_slow": "yarn_beta_slow",
    }
    return {names[key]: value for key, value in scaling.items()}


def _llama3_divisors(scaling: dict[str, Any], theta: float, head_dim: int) -> np.ndarray[Any, Any]:
    """What each frequency is divided by, `[head_dim / 2]`."""
    factor, low, high = (scaling[key] for key in ("factor", "low_freq_factor", "high_freq_factor"))
    divisors = []
    for pair in range(head_dim // 2):
        wave = 2 * math.pi * theta ** (2 * pair / head_dim)
        turns = scaling["original_max_position_embeddings"] / wave
        kept = (turns - low) / (high - low)
        divisors.append(1.0 if turns > high else factor if turns < low else 1 / ((1 - kept) / factor + kept))
    return np.array(divisors, dtype=np.float32)


def _add(writer: gguf.GGUFWriter, key: str, value: str | int | float | bool | list[Any]) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def _gguf_name(name: str) -> str:
    for theirs, ours in _NAMES.items():
        name = name.replace(theirs, ours)
    return name


def _interleaved(name: str, array: np.ndarray[Any, Any], config: dict[str, Any]) -> np.ndarray[Any, Any]:
    """`(a0 a1 … b0 b1 …)` to `(a0 b0 a1 b1 …)` in each head of q and k; only some are stored so."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}.get(name.split(".")[-2])
    if heads is None or config["model_type"] not in _INTERLEAVED:
        return array
    halves = array.reshape(heads, 2, -1, *array.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
