"""The paged KV cache: one tensor in which a block of all layers is one contiguous run of bytes.

Owns the memory and its two views: tensors per layer for the step, bytes per block for transfers. Must not know which
block is whose, or free. The order of values is `KVFormat`'s.
"""

from math import prod

import numpy as np
import torch

from services.core.errors import KVCorrupt
from services.core.ids import BlockId
from services.core.model_config import WHOLE, KVFormat
from services.engine.kv_layer import LayerKV

DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}
"""Names in `KVFormat.dtype`."""


class KVCache:
    """`num_blocks` blocks of the given format. Implements `interface.KVAccess`."""

    def __init__(self, kv_format: KVFormat, num_blocks: int, device: torch.device) -> None:
        self._format = kv_format
        # Words, since every part of a block begins at one and they are cleared faster than bytes.
        self._words = torch.zeros((num_blocks, kv_format.block_bytes // 4), dtype=torch.int32, device=device)
        self._bytes = self._words.view(torch.uint8)  # [num_blocks, block_bytes]
        self._layers = tuple(self._views(index * kv_format.layer_bytes) for index in range(kv_format.layers))

    @property
    def format(self) -> KVFormat:
        return self._format

    @property
    def num_blocks(self) -> int:
        return self._words.shape[0]

    @property
    def device(self) -> torch.device:
        return self._words.device

    @property
    def memory(self) -> torch.Tensor:
        """All blocks, `[num_blocks, words]` of int32."""
        return self._words

    @property
    def nbytes(self) -> int:
        return self._words.nbytes

    def layer(self, index: int) -> LayerKV:
        """Live views of one layer of all blocks."""
        return self._layers[index]

    def clear(self, blocks: torch.Tensor) -> None:
        """Zero the blocks `[n]`, so that nothing an earlier owner left (a NaN, above all) is read as padding."""
        self._words.index_fill_(0, blocks, 0)

    def read_block(self, block: BlockId) -> memoryview:
        """See `KVAccess.read_block`."""
        return self._bytes[block].cpu().numpy().data.toreadonly()

    def write_block(self, block: BlockId, content: memoryview) -> None:
        """See `KVAccess.write_block`."""
        self.copy_in(block, content)

    def copy_out(self, block: BlockId, into: memoryview, part: slice = WHOLE) -> None:
        """See `KVAccess.copy_out`."""
        torch.from_numpy(np.frombuffer(into, np.uint8)).copy_(self._bytes[block, part])

    def copy_in(self, block: BlockId, content: memoryview, part: slice = WHOLE) -> memoryview:
        """See `KVAccess.copy_in`."""
        filled = self._bytes[block, part]
        if content.nbytes != filled.nbytes:
            raise KVCorrupt(f"there are {content.nbytes} bytes for {filled.nbytes} of a block")
        if self.device.type == "cpu":
            copy = filled.numpy()
            np.copyto(copy, np.frombuffer(content, np.uint8))
        else:
            copy = np.frombuffer(content, np.uint8).copy()
            filled.copy_(torch.from_numpy(copy))
        return copy.data.toreadonly()

    def _views(self, start: int) -> LayerKV:
        """The layer whose part of a block begins at byte `start`."""
        heads, size, dim = self._format.kv_heads, self._format.block_size, self._format.head_dim
        dtype = DTYPES[self._format.dtype]
        width = heads * size * dim * dtype.itemsize
        k, v = self._part(start, dtype, (heads, dim, size)), self._part(start + width, dtype, (heads, size, dim))
        if not self._format.scaled:
            return LayerKV(k, v)
        k_scale, v_scale = (
            self._part(start + 2 * width + at * heads * size * 4, torch.float32, (heads, size)) for at in (0, 1)
        )
        return LayerKV(k, v, k_scale, v_scale)

    def _part(self, start: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        return self._bytes[:, start : start + prod(shape) * dtype.itemsize].view(dtype).view(-1, *shape)
