"""Which tensors a model consists of, by Hugging Face's names; a checkpoint has exactly these or is refused.

A weight that is missing would stay uninitialized, and one that is left over means that the file is another model.
"""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from services.core.model_config import ModelConfig
from services.modelfiles.errors import ModelError
from services.modelfiles.stored_tensor import LazyTensor, Shape

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

_DERIVED = re.compile(r"(model\.layers\.\d+\.self_attn|model)\.rotary_emb\.inv_freq")
"""Written by old checkpoints; computed from the configuration."""

_NAMED_IN_ERRORS = 5


def expected_tensors(config: ModelConfig) -> dict[str, Shape]:
    """Name to shape, `[out, in]` for matrices, in the order in which a forward pass meets them."""
    shapes: dict[str, Shape] = {EMBEDDING: (config.vocab, config.hidden)}
    for layer in range(config.layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in _layer_tensors(config)}
    shapes["model.norm.weight"] = (config.hidden,)
    if not config.tied_embeddings:
        shapes[HEAD] = (config.vocab, config.hidden)
    return shapes


def checked_tensors(config: ModelConfig, found: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """The expected tensors out of `found`, in order.

    Raises `ModelError` naming what is missing, left over or of another shape. A head beside tied embeddings may
    only repeat them.
    """
    expected = expected_tensors(config)
    missing = [name for name in expected if name not in found]
    if missing:
        raise ModelError(f"missing from the checkpoint: {_listed(missing)}")
    left_over = [name for name in found if name not in expected and not _DERIVED.fullmatch(name)]
    if config.tied_embeddings and HEAD in left_over:
        _require_repeated_embedding(found)
        left_over.remove(HEAD)
    if left_over:
        raise ModelError(f"not part of a {config.architecture} model: {_listed(left_over)}")
    for name, shape in expected.items():
        if found[name].shape != shape:
            raise ModelError(f"{name} has shape {list(found[name].shape)}, the configuration says {list(shape)}")
    return {name: found[name] for name in expected}


def _layer_tensors(config: ModelConfig) -> Iterator[tuple[str, Shape]]:
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    yield "input_layernorm.weight", (config.hidden,)
    for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        yield f"self_attn.{name}.weight", (rows, config.hidden)
        if config.attention_bias:
            yield f"self_attn.{name}.bias", (rows,)
    if config.qk_norm:
        yield "self_attn.q_norm.weight", (config.head_dim,)
        yield "self_attn.k_norm.weight", (config.head_dim,)
    yield "self_attn.o_proj.weight", (config.hidden, queries)
    if config.output_bias:
        yield "self_attn.o_proj.bias", (config.hidden,)
    yield "post_attention_layernorm.weight", (config.hidden,)
    yield "mlp.gate_proj.weight", (config.intermediate, config.hidden)
    yield "mlp.up_proj.weight", (config.intermediate, config.hidden)
    yield "mlp.down_proj.weight", (config.hidden, config.intermediate)


def _require_repeated_embedding(found: Mapping[str, LazyTensor]) -> None:
    head, embedding = found[HEAD].read(), found[EMBEDDING].read()
    if head.form is embedding.form and np.array_equal(head.data, embedding.data):
        return
    if not np.array_equal(head.floats(), embedding.floats()):
        raise ModelError(f"{HEAD} differs from the embeddings, which the configuration says are tied to it")


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED_IN_ERRORS
    return ", ".join(names[:_NAMED_IN_ERRORS]) + (f" and {more} more" if more > 0 else "")
