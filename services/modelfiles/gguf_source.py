"""A GGUF file into a `ModelSource`: metadata, tokenizer, and tensors under Hugging Face's names as float32.

Quantized tensors are dequantized when read. llama.cpp stores the rows of q and k of Llama models interleaved for its
rotation of neighbouring pairs; they are put back into the order in which a head's two halves rotate together.
"""

import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize

from services.core.model_config import ModelConfig
from services.modelfiles.errors import ModelError
from services.modelfiles.fields import Fields
from services.modelfiles.gguf_config import config_from_gguf
from services.modelfiles.gguf_tokenizer import adds_bos, tokenizer_from_gguf
from services.modelfiles.source import ModelSource
from services.modelfiles.tensors import EMBEDDING, HEAD, Floats, LazyTensor
from services.modelfiles.vocabulary import Vocabulary, end_of_turn_ids

_ROPE_FACTORS = "rope_freqs.weight"

_TOP_NAMES = {
    "token_embd.weight": EMBEDDING,
    "output_norm.weight": "model.norm.weight",
    "output.weight": HEAD,
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_PIECE_KEYS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def read_gguf(path: Path) -> ModelSource:
    """Raises `ModelError` if the file is damaged or holds a model or tokenizer that is not supported."""
    try:
        reader = gguf.GGUFReader(path)
        values = {key: field.contents() for key, field in reader.fields.items()}
    except (ValueError, LookupError, struct.error) as error:
        raise ModelError(f"{path.name} is truncated or not a GGUF file") from error
    metadata = Fields(values, path.name)
    if metadata.count("split.count", 1) != 1:
        raise ModelError(f"{path.name}: a model split over several files (split.count) is not supported")
    stored = {tensor.name: tensor for tensor in reader.tensors}
    config = _config(metadata, stored)
    tokenizer = tokenizer_from_gguf(metadata)
    template = metadata.get("tokenizer.chat_template")
    return ModelSource(
        config=config,
        vocabulary=_vocabulary(metadata, end_of_turn_ids(tokenizer)),
        tokenizer_json=tokenizer.to_str(),
        chat_template=template if isinstance(template, str) else None,
        tensors={_hf_name(name): _lazy(tensor, config) for name, tensor in stored.items() if name != _ROPE_FACTORS},
    )


def _config(metadata: Fields, stored: Mapping[str, gguf.ReaderTensor]) -> ModelConfig:
    if "token_embd.weight" not in stored:
        raise ModelError(f"{metadata.origin}: token_embd.weight is missing")
    factors = stored.get(_ROPE_FACTORS)
    return config_from_gguf(
        metadata,
        vocab=int(stored["token_embd.weight"].shape[1]),
        tied="output.weight" not in stored,
        rope_factors=None if factors is None else np.asarray(factors.data, dtype=np.float32),
    )


def _vocabulary(metadata: Fields, ends: frozenset[int]) -> Vocabulary:
    tokens = metadata.get("tokenizer.ggml.tokens")
    known = tokens if isinstance(tokens, list) else []
    ids = {name: metadata.ids(f"tokenizer.ggml.{key}_token_id") for name, key in _PIECE_KEYS.items()}
    pieces = {name: str(known[index]) for name, found in ids.items() for index in found if 0 <= index < len(known)}
    declared = frozenset[int]().union(*(metadata.ids(f"tokenizer.ggml.{key}") for key in _END_KEYS))
    return Vocabulary(
        stop_ids=declared | ends,
        bos_id=next(iter(ids["bos_token"]), None),
        add_bos=adds_bos(metadata),
        pieces=pieces,
    )


def _hf_name(name: str) -> str:
    """Hugging Face's name; an unknown tensor keeps its own and is refused by it later."""
    matched = _LAYER_TENSOR.fullmatch(name)
    if matched is None or matched[2] not in _LAYER_NAMES:
        return _TOP_NAMES.get(name, name)
    return f"model.layers.{matched[1]}.{_LAYER_NAMES[matched[2]]}.{matched[3]}"


def _lazy(tensor: gguf.ReaderTensor, config: ModelConfig) -> LazyTensor:
    shape = tuple(int(size) for size in reversed(tensor.shape))
    is_interleaved = config.architecture == "llama" and ".attn_" in tensor.name
    heads = (
        {"attn_q": config.heads, "attn_k": config.kv_heads}.get(tensor.name.split(".")[-2]) if is_interleaved else None
    )
    return LazyTensor(shape, _reader(tensor, shape, heads))


def _reader(tensor: gguf.ReaderTensor, shape: tuple[int, ...], interleaved_heads: int | None) -> Callable[[], Floats]:
    def read() -> Floats:
        try:
            values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32).reshape(shape)
        except (NotImplementedError, ValueError) as error:
            raise ModelError(f"{tensor.name} is stored as {tensor.tensor_type.name}, which cannot be read") from error
        return values if interleaved_heads is None else halves_apart(values, interleaved_heads)

    return read


def halves_apart(rows: Floats, heads: int) -> Floats:
    """Rows of each head from `(a0 b0 a1 b1 …)` to `(a0 a1 … b0 b1 …)`. `rows` is `[heads * head_dim, …]`."""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])  # [heads, head_dim / 2, 2, ...]
    return pairs.swapaxes(1, 2).reshape(rows.shape)
