"""The torch engine, measured; in float32 throughout it is the reference for every other engine.

A stage is computed by a decoder cut down to it: rows go in as the embedding of tokens 0, 1, 2, …, and one layer or none
follows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from services.engine.batch import Batch
from services.engine.devices import backend_for, step_on
from services.engine.matrix import Int8Matrix, Matrix
from services.engine.model import LlamaDecoder
from services.engine.quality.subject import Floats, KeptMatrix, whole_prompt
from services.engine.quality.wanted import Wanted, places
from services.engine.runner import ModelRunner
from services.engine.weights import DecoderWeights
from services.modelfiles.prepared import PreparedModel

_NAMES = {"out": "attention_out"}
"""Names of matrices in `LayerWeights` where they are not those of `places`."""


class TorchSubject:
    """Implements `Subject`."""

    def __init__(self, prepared: PreparedModel, runner: ModelRunner) -> None:
        self._prepared = prepared
        self._runner = runner
        self._weights = runner.decoder.weights
        self._device = runner.kv.device

    def every_logits(self, tokens: Sequence[int]) -> Iterator[Floats]:
        return self._runner.every_logits(whole_prompt(tokens, self._runner.kv.format.block_size))

    def embedded(self, tokens: Sequence[int]) -> Floats:
        return self._floats(self._weights.embedding[torch.tensor(tokens, device=self._device)])

    def layer(self, index: int, rows: Floats) -> Floats:
        fed = self._on_device(rows)
        cache = self._runner.kv
        decoder = self._decoder(replace(self._weights, embedding=fed, layers=(self._weights.layers[index],)))
        chunk = whole_prompt(range(len(rows)), cache.format.block_size)
        with torch.inference_mode(), step_on(self._device):
            return self._floats(decoder.forward(Batch.of([chunk], cache.format.block_size, self._device), cache))

    def head(self, rows: Floats) -> Floats:
        with torch.inference_mode(), step_on(self._device):
            return self._floats(self._runner.decoder.logits(self._on_device(rows)))

    def matrices(self) -> Iterator[KeptMatrix]:
        wanted, weights = Wanted(self._prepared), self._weights
        for index, name, place in places(len(weights.layers)):
            matrix: Matrix = getattr(weights.layers[index], _NAMES.get(name, name))
            yield self._kept(place, matrix, wanted.of_layer(index, name))
        if weights.head is not weights.embedding:
            yield self._kept("embedding", weights.embedding, wanted.embedding())
        yield self._kept("head", weights.head, wanted.head())

    def _decoder(self, weights: DecoderWeights) -> LlamaDecoder:
        return LlamaDecoder(self._prepared.config, weights, backend_for(self._device))

    def _on_device(self, rows: Floats) -> torch.Tensor:
        return torch.from_numpy(rows).to(self._device, self._weights.embedding.dtype)

    def _kept(self, place: str, matrix: Matrix, wanted: Floats) -> KeptMatrix:
        if isinstance(matrix, Int8Matrix):
            return KeptMatrix(place, "int8", self._floats(matrix.floats()), wanted)
        form = "rounded float16" if matrix.dtype == torch.float16 else "float32"
        return KeptMatrix(place, form, self._floats(matrix), wanted)

    def _floats(self, tensor: torch.Tensor) -> Floats:
        return np.asarray(tensor.float().cpu().numpy(), np.float32)
