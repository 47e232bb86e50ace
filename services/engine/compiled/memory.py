"""What of the compiled engine is resident, array by array."""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from services.core.memory import EngineMemory
from services.engine.compiled.kv_memory import KVMemory
from services.engine.compiled.weights import DecoderWeights
from services.engine.residency import Span, resident_bytes

Array = npt.NDArray[Any]


def compiled_memory(weights: DecoderWeights, cache: KVMemory, buffers: Iterable[object]) -> EngineMemory:
    """`buffers` are all that a step is given: what it shares with the weights is told apart by its address. Raises
    `OSError` where the system does not tell."""
    matrices = [matrix.panels for matrix in weights.matrices.values()]
    vectors = _arrays(getattr(weights, each.name) for each in fields(weights))
    kept = {_span(array) for array in (*matrices, *vectors)}
    held = resident_bytes(kept)
    step = {_span(array) for array in _arrays(buffers)} - kept
    return EngineMemory(
        weights_mapped=held.mapped,
        weights_private=held.private,
        kv=resident_bytes([_span(cache.blocks)]).private,
        kv_reserved=cache.blocks.nbytes,
        step=resident_bytes(step).private,
    )


def _arrays(values: Iterable[object]) -> list[Array]:
    return [value for value in values if isinstance(value, np.ndarray)]


def _span(array: Array) -> Span:
    return Span(array.ctypes.data, array.nbytes)
