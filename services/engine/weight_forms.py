"""A decoder's weights in the form that the torch engine serves.

Owns which tensors take which form: what the rows are multiplied by may be int8; vectors and the embedding decide the
float type that rows are computed in.
"""

from dataclasses import fields, replace
from typing import Any, Literal, TypeAlias

from services.engine.matrix import Int8Matrix, Matrix
from services.engine.weights import DecoderWeights, LayerWeights

WeightForm: TypeAlias = Literal["float32", "float16", "int8"]
"""`int8` keeps rows in float32 on a CPU and takes float16 on a GPU, whose matrix units are made for it."""


def in_form(weights: DecoderWeights, form: WeightForm) -> DecoderWeights:
    """Float32 weights in another form, on the device where they are."""
    in_half = form == "float16" or (form == "int8" and weights.embedding.device.type == "cuda")
    if form == "int8":
        weights = _as_int8(weights)
    return _as_float16(weights) if in_half else weights


def _as_float16(weights: DecoderWeights) -> DecoderWeights:
    embedding = weights.embedding.half()
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(_halved(layer) for layer in weights.layers),
        norm=weights.norm.half(),
        head=embedding if weights.head is weights.embedding else _half(weights.head),
    )


def _halved(layer: LayerWeights) -> LayerWeights:
    present: dict[str, Any] = {each.name: getattr(layer, each.name) for each in fields(layer)}
    halved: dict[str, Any] = {name: _half(value) for name, value in present.items() if value is not None}
    return replace(layer, **halved)


def _half(matrix: Matrix) -> Matrix:
    return matrix if isinstance(matrix, Int8Matrix) else matrix.half()


def _as_int8(weights: DecoderWeights) -> DecoderWeights:
    return replace(weights, layers=tuple(map(_with_int8, weights.layers)), head=_int8(weights.head))


def _with_int8(layer: LayerWeights) -> LayerWeights:
    return replace(
        layer,
        qkv=_int8(layer.qkv),
        attention_out=_int8(layer.attention_out),
        gate_up=_int8(layer.gate_up),
        down=_int8(layer.down),
    )


def _int8(matrix: Matrix) -> Int8Matrix:
    return matrix if isinstance(matrix, Int8Matrix) else Int8Matrix.nearest(matrix)
