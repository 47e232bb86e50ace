"""The compiled engine, measured.

A stage is computed by the step itself on a model cut down to it: rows go in as the embedding of tokens 0, 1, 2, …, and
one layer or none follows.
"""

import ctypes
from collections.abc import Iterator, Sequence

import numpy as np

from services.engine.compiled.kernels.forms import PANEL
from services.engine.compiled.kernels.linear import MATRIX
from services.engine.compiled.kernels.linear_kernels import decode_panels
from services.engine.compiled.kernels.step_data import Model
from services.engine.compiled.packed_file import PackedMatrix
from services.engine.compiled.packing import packed
from services.engine.compiled.runner import CompiledRunner
from services.engine.compiled.weights import EMBEDDING, HEAD, matrix_record
from services.engine.quality.subject import Floats, KeptMatrix, whole_prompt
from services.engine.quality.wanted import Wanted, places
from services.modelfiles.prepared import PreparedModel
from services.modelfiles.stored_tensor import Form, StoredTensor

PER_LAYER = ("layers", "attention_norm", "mlp_norm", "qkv_bias", "out_bias", "query_norm", "key_norm")
"""Fields of `Model` whose first dimension is the layer."""


class CompiledSubject:
    """Implements `Subject`."""

    def __init__(self, prepared: PreparedModel, runner: CompiledRunner) -> None:
        self._prepared = prepared
        self._runner = runner
        self._block_size = runner.kv.format.block_size

    def every_logits(self, tokens: Sequence[int]) -> Iterator[Floats]:
        return self._runner.every_logits(whole_prompt(tokens, self._block_size))

    def embedded(self, tokens: Sequence[int]) -> Floats:
        runner = self._runner.of_model(_layers(self._runner.model, 0, 0))
        return runner.hidden(whole_prompt(tokens, self._block_size))

    def layer(self, index: int, rows: Floats) -> Floats:
        kept, model = _fed(rows, _layers(self._runner.model, index, index + 1))
        found = self._runner.of_model(model).hidden(whole_prompt(range(len(rows)), self._block_size))
        del kept
        return found

    def head(self, rows: Floats) -> Floats:
        kept, model = _fed(rows, _layers(self._runner.model, 0, 0))
        (found,) = self._runner.of_model(model).every_logits(whole_prompt(range(len(rows)), self._block_size))
        del kept
        return found

    def matrices(self) -> Iterator[KeptMatrix]:
        wanted, kept = Wanted(self._prepared), self._runner.weights.matrices
        for index, name, place in places(self._runner.config.layers):
            matrix = kept[f"layers.{index}.{name}"]
            yield _kept(place, matrix, wanted.of_layer(index, name))
        if EMBEDDING in kept:
            yield _kept("embedding", kept[EMBEDDING], wanted.embedding())
        yield _kept("head", kept[HEAD], wanted.head())


def decoded(matrix: PackedMatrix) -> Floats:
    """`[outputs in whole panels, inputs]`, by the kernel that the step uses."""
    count, size = matrix.panels.shape
    if matrix.form == "float32":
        panels = np.ascontiguousarray(matrix.panels).view(np.float32)
    else:
        panels = np.empty((count, matrix.inputs * PANEL), np.float32)
        words = [ctypes.c_int64] * 6
        decode = ctypes.CFUNCTYPE(None, *words)(decode_panels(matrix.form))
        # The first number is the form, a constant inside the kernel.
        decode(0, matrix.panels.ctypes.data, size, count, matrix.inputs, panels.ctypes.data)
    rows = panels.reshape(count, matrix.inputs, PANEL).swapaxes(1, 2)
    if matrix.name.endswith("gate_up"):
        # Panels are of gate and up by turns.
        rows = np.concatenate([rows[0::2], rows[1::2]])
    return rows.reshape(count * PANEL, matrix.inputs)


def _kept(place: str, matrix: PackedMatrix, wanted: Floats) -> KeptMatrix:
    """Without the zeros that fill up the last panel, if they are that."""
    rows = decoded(matrix)
    beyond = rows[len(wanted) :]
    return KeptMatrix(place, matrix.form, rows if beyond.any() else rows[: len(wanted)], wanted)


def _layers(model: Model, first: int, end: int) -> Model:
    return model._replace(**{name: getattr(model, name)[first:end] for name in PER_LAYER})


def _fed(rows: Floats, model: Model) -> tuple[PackedMatrix, Model]:
    """The model with an embedding whose token n is row n, and the matrix that owns the embedding's memory."""
    tensor = StoredTensor(Form.FLOAT32, rows.shape, np.ascontiguousarray(rows))
    kept = PackedMatrix("rows", "float32", rows.shape[1], packed(tensor, "float32"))
    return kept, model._replace(embedding=np.array([matrix_record(kept)], MATRIX))
