"""A GGUF file into a `ModelSource`: metadata, tokenizer, and tensors under Hugging Face's names.

Floats and the blocks of Q4_0, Q4_1 and Q8_0 matrices stay as they are in the file; other kinds (the K-quants among
them) are dequantized to float32 when read. llama.cpp stores the rows of q and k of Llama models interleaved for its
rotation of neighbouring pairs; they are put back into the order in which a head's two halves rotate together. Blocks
run along a row, so that this moves whole rows whatever their form.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quant_shape_to_byte_shape

from services.core.model_config import ModelConfig
from services.modelfiles.errors import ModelError
from services.modelfiles.fields import Fields
from services.modelfiles.gguf_config import TensorFacts, config_from_gguf
from services.modelfiles.gguf_file import GGUFTensor, open_gguf
from services.modelfiles.gguf_tokenizer import adds_bos, tokenizer_from_gguf
from services.modelfiles.source import ModelSource
from services.modelfiles.stored_tensor import (
    BLOCK_LAYOUTS,
    Array,
    Form,
    LazyTensor,
    StoredTensor,
    data_shape,
    data_type,
)
from services.modelfiles.tensors import EMBEDDING, HEAD
from services.modelfiles.vocabulary import Vocabulary, end_of_turn_ids

_ROPE_FACTORS = "rope_freqs.weight"

_FORMS = {
    Kind.F32: Form.FLOAT32,
    Kind.F16: Form.FLOAT16,
    Kind.BF16: Form.BFLOAT16,
    Kind.Q4_0: Form.Q4_0,
    Kind.Q4_1: Form.Q4_1,
    Kind.Q8_0: Form.Q8_0,
}
"""The kinds that are kept."""

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
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
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
    file = open_gguf(path)
    metadata = Fields(file.metadata, path.name)
    if metadata.count("split.count", 1) != 1:
        raise ModelError(f"{path.name}: a model split over several files (split.count) is not supported")
    config = _config(metadata, file.tensors)
    tokenizer = tokenizer_from_gguf(metadata)
    if tokenizer.get_vocab_size(with_added_tokens=True) > config.vocab:
        raise ModelError(f"{path.name}: tokenizer.ggml.tokens has more tokens than token_embd.weight has rows")
    template = metadata.get("tokenizer.chat_template")
    return ModelSource(
        config=config,
        vocabulary=_vocabulary(metadata, end_of_turn_ids(tokenizer)),
        tokenizer_json=tokenizer.to_str(),
        chat_template=template if isinstance(template, str) else None,
        tensors={
            _hf_name(name): _lazy(name, tensor, config)
            for name, tensor in file.tensors.items()
            if name != _ROPE_FACTORS
        },
    )


def _config(metadata: Fields, tensors: Mapping[str, GGUFTensor]) -> ModelConfig:
    if "token_embd.weight" not in tensors:
        raise ModelError(f"{metadata.origin}: token_embd.weight is missing")
    factors = tensors.get(_ROPE_FACTORS)
    biased = {matched[2] for name in tensors if (matched := _LAYER_TENSOR.fullmatch(name)) and matched[3] == "bias"}
    facts = TensorFacts(
        vocab=tensors["token_embd.weight"].shape[0],
        has_head="output.weight" in tensors,
        has_input_bias=not biased.isdisjoint({"attn_q", "attn_k", "attn_v"}),
        has_output_bias="attn_output" in biased,
        rope_factors=None if factors is None else _stored(_ROPE_FACTORS, factors).floats(),
    )
    return config_from_gguf(metadata, facts)


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


def _lazy(name: str, tensor: GGUFTensor, config: ModelConfig) -> LazyTensor:
    heads = _interleaved_heads(name, config)

    def read() -> StoredTensor:
        stored = _stored(name, tensor)
        return stored if heads is None else StoredTensor(stored.form, stored.shape, halves_apart(stored.data, heads))

    return LazyTensor(_form(tensor), tensor.shape, read)


def _form(tensor: GGUFTensor) -> Form:
    """The form in which a tensor is read."""
    form = _FORMS.get(tensor.kind, Form.FLOAT32)
    return Form.FLOAT32 if form in BLOCK_LAYOUTS and len(tensor.shape) != 2 else form


def _stored(name: str, tensor: GGUFTensor) -> StoredTensor:
    form = _form(tensor)
    if _FORMS.get(tensor.kind) is form:
        data = tensor.raw.view(data_type(form)).reshape(data_shape(form, tensor.shape))
        return StoredTensor(form, tensor.shape, data)
    try:
        blocks = tensor.raw.reshape(quant_shape_to_byte_shape(tensor.shape, tensor.kind))
        values = np.asarray(dequantize(blocks, tensor.kind), dtype=np.float32).reshape(tensor.shape)
    except (NotImplementedError, ValueError) as error:
        raise ModelError(f"{name} is stored as {tensor.kind.name}, which cannot be read") from error
    return StoredTensor(form, tensor.shape, values)


def _interleaved_heads(name: str, config: ModelConfig) -> int | None:
    """How many heads the rows of a tensor are, if they are interleaved."""
    matched = _LAYER_TENSOR.fullmatch(name)
    if matched is None or config.architecture != "llama":
        return None
    return {"attn_q": config.heads, "attn_k": config.kv_heads}.get(matched[2])


def halves_apart(rows: Array, heads: int) -> Array:
    """Rows of each head from `(a0 b0 a1 b1 …)` to `(a0 a1 … b0 b1 …)`. `rows` is `[heads * head_dim, …]`."""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])  # [heads, head_dim / 2, 2, ...]
    return pairs.swapaxes(1, 2).reshape(rows.shape)
