"""What each matrix of an engine should be: the model's own tensors in float32, in the order in which they are fused."""

from collections.abc import Iterator, Mapping

import numpy as np

from services.engine.compiled.weights import EMBEDDING, HEAD, PARTS
from services.engine.quality.subject import Floats
from services.modelfiles.prepared import PreparedModel
from services.modelfiles.stored_tensor import StoredTensor


class Wanted:
    """Reads a tensor when it is asked for."""

    def __init__(self, prepared: PreparedModel) -> None:
        self._tensors: Mapping[str, StoredTensor] = prepared.open_tensors()

    def of_layer(self, index: int, name: str) -> Floats:
        """`[outputs, inputs]`; `name` is one of `PARTS`."""
        return np.concatenate([self._floats(f"model.layers.{index}.{part}.weight") for part in PARTS[name]])

    def embedding(self) -> Floats:
        return self._floats(EMBEDDING)

    def head(self) -> Floats:
        return self._floats(HEAD if HEAD in self._tensors else EMBEDDING)

    def _floats(self, name: str) -> Floats:
        return np.asarray(self._tensors[name].floats(), np.float32)


def places(layers: int) -> Iterator[tuple[int, str, str]]:
    """Layer, name and place of every fused matrix of the layers."""
    for index in range(layers):
        for name in PARTS:
            yield index, name, f"layer {index}, {name}"
