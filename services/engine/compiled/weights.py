"""Which form each matrix is kept in, and how a model's tensors become the matrices that a step multiplies by.

qkv       query, key and value one after the other
gate_up   panels of gate and up by turns, so that SwiGLU finds both in one thread's hands
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.core.engine_settings import WeightsMode
from services.core.model_config import ModelConfig
from services.engine.compiled.kernels.forms import PANEL, WHOLE
from services.engine.compiled.kernels.linear import MATRIX
from services.engine.compiled.kernels.linear_kernels import decode_panels, few_rows, fixed_rows, many_rows
from services.engine.compiled.kernels.step_data import LAYER
from services.engine.compiled.packed_file import VERSION, Bytes, PackedMatrix, packed_matrices
from services.engine.compiled.packing import NATIVE, packed
from services.modelfiles.prepared import PreparedModel
from services.modelfiles.stored_tensor import BLOCK_LAYOUTS, StoredTensor

Floats = npt.NDArray[np.float32]
Tensors = Mapping[str, StoredTensor]

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
LAYER_MATRICES = ("qkv", "out", "gate_up", "down")
PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""Each of `LAYER_MATRICES` and the tensors it is made of, below `model.layers.N`."""


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """Everything a step reads of a model. Matrices lie in a mapped file, or in memory where none can be written."""

    layers: npt.NDArray[np.void]
    """`[layers]`, a `MATRIX` for each of `LAYER_MATRICES`."""
    embedding: npt.NDArray[np.void]
    """`[1]` of `MATRIX`; so `head`."""
    head: npt.NDArray[np.void]
    attention_norm: Floats
    """`[layers, hidden]`; so `mlp_norm`."""
    mlp_norm: Floats
    norm: Floats
    """`[hidden]`."""
    qkv_bias: Floats
    """`[layers, width of qkv]`, or of width 0; so the norms of `[layers, head_dim]`."""
    out_bias: Floats
    """`[layers, hidden]`, or of width 0."""
    query_norm: Floats
    key_norm: Floats
    matrices: Mapping[str, PackedMatrix]
    """By name; they own the memory that the records point to."""

    @property
    def matrix_bytes(self) -> int:
        """All that is kept of matrices."""
        return sum(matrix.panels.nbytes for matrix in self.matrices.values())

    @property
    def step_bytes(self) -> int:
        """What a step with few rows reads of them: all but an embedding that is not the head too."""
        return sum(matrix.panels.nbytes for name, matrix in self.matrices.items() if name != EMBEDDING)


def decoder_weights(prepared: PreparedModel, mode: WeightsMode) -> DecoderWeights:
    """Packed and mapped. Raises `ModelError` if the tensors are not those of the configuration."""
    config = prepared.config
    tensors = prepared.open_tensors()
    path = prepared.directory / "packed" / f"{mode}-{VERSION}.bin"
    matrices = packed_matrices(path, lambda: _pack(config, tensors, mode))
    layers = np.zeros(config.layers, LAYER)
    for index in range(config.layers):
        for name in LAYER_MATRICES:
            layers[index][name] = matrix_record(matrices[f"layers.{index}.{name}"])
    embedding = HEAD if config.tied_embeddings else EMBEDDING

    def stacked(*names: str) -> Floats:
        """Vectors of all layers, those of a layer one after the other; of width 0 if the model has none."""
        rows = [
            np.concatenate([tensors[f"model.layers.{layer}.{name}"].floats() for name in names])
            if f"model.layers.{layer}.{names[0]}" in tensors
            else np.zeros(0, np.float32)
            for layer in range(config.layers)
        ]
        return np.stack(rows)

    return DecoderWeights(
        layers=layers,
        embedding=np.array([matrix_record(matrices[embedding])], MATRIX),
        head=np.array([matrix_record(matrices[HEAD])], MATRIX),
        attention_norm=stacked("input_layernorm.weight"),
        mlp_norm=stacked("post_attention_layernorm.weight"),
        norm=tensors["model.norm.weight"].floats(),
        qkv_bias=stacked(*(f"{part}.bias" for part in PARTS["qkv"])),
        out_bias=stacked("self_attn.o_proj.bias"),
        query_norm=stacked("self_attn.q_norm.weight"),
        key_norm=stacked("self_attn.k_norm.weight"),
        matrices=matrices,
    )


def _pack(config: ModelConfig, tensors: Tensors, mode: WeightsMode) -> Iterator[PackedMatrix]:
    for index in range(config.layers):
        for name in LAYER_MATRICES:
            parts = [tensors[f"model.layers.{index}.{part}.weight"] for part in PARTS[name]]
            yield _packed_together(f"layers.{index}.{name}", parts, mode)
    if config.tied_embeddings:
        yield _packed_together(HEAD, [tensors[EMBEDDING]], mode)
    else:
        yield _packed_together(EMBEDDING, [tensors[EMBEDDING]], mode)
        yield _packed_together(HEAD, [tensors[HEAD]], mode)


def _packed_together(name: str, parts: list[StoredTensor], mode: WeightsMode) -> PackedMatrix:
    form = _form(parts, mode)
    panels: list[Bytes] = [packed(part, form) for part in parts]
    if name.endswith("gate_up"):
        together = np.stack(panels, axis=1).reshape(-1, panels[0].shape[1])
    else:
        together = np.concatenate(panels)
    return PackedMatrix(name, form, parts[0].shape[1], together)


def _form(parts: list[StoredTensor], mode: WeightsMode) -> str:
    """One form for parts that are multiplied as one matrix."""
    if mode in ("int8", "float32"):
        return mode
    forms = {part.form for part in parts}
    if len(forms) > 1:
        return "int8" if mode == "auto" else "float32"
    form = forms.pop()
    return NATIVE[form] if mode == "native" or form in BLOCK_LAYOUTS else "int8"


def matrix_record(matrix: PackedMatrix) -> tuple[int, ...]:
    """As `MATRIX`; valid while the matrix lives."""
    panels, size = matrix.panels.shape
    return matrix.panels.ctypes.data, size, panels * PANEL, matrix.inputs, *kernels_of(matrix.form)


def kernels_of(form: str) -> tuple[int, int, int, int]:
    if form in WHOLE:
        return fixed_rows(form), 0, 0, decode_panels(form)
    return 0, few_rows(form), many_rows(), 0 if form == "float32" else decode_panels(form)
