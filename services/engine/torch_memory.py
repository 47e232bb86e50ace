"""What of the torch engine is resident, tensor by tensor."""

from collections.abc import Iterator
from dataclasses import fields

import torch

from services.core.memory import EngineMemory
from services.engine.kv_cache import KVCache
from services.engine.matrix import Int8Matrix, Matrix
from services.engine.residency import Span, resident_bytes
from services.engine.weights import DecoderWeights


def torch_memory(weights: DecoderWeights, cache: KVCache) -> EngineMemory:
    """Raises `OSError` where the system does not tell. On a GPU only the device's memory is the engine's."""
    if cache.device.type == "cuda":
        return EngineMemory(kv_reserved=cache.nbytes, device=torch.cuda.memory_reserved(cache.device))
    held = resident_bytes({_span(tensor) for tensor in _tensors(weights)})
    kv = resident_bytes([_span(cache.memory)])
    return EngineMemory(held.mapped, held.private, kv.private, cache.nbytes)


def _tensors(weights: DecoderWeights) -> Iterator[torch.Tensor]:
    yield from (weights.embedding, weights.norm, *_parts(weights.head))
    for layer in weights.layers:
        for each in fields(layer):
            yield from _parts(getattr(layer, each.name))


def _parts(matrix: Matrix | None) -> Iterator[torch.Tensor]:
    if isinstance(matrix, Int8Matrix):
        yield from (matrix.values, matrix.scales)
    elif matrix is not None:
        yield matrix


def _span(tensor: torch.Tensor) -> Span:
    return Span(tensor.data_ptr(), tensor.nbytes)
