"""The paged KV cache: one tensor in which a block of all layers is one contiguous run of bytes.

    [num_blocks, layers, 2 (k, v), block_size, kv_heads, head_dim]

Owns the memory and its two views: tensors per layer for the step, bytes per block for transfers. Must not know which
block is whose, or free.
"""

import numpy as np
import torch

from services.core.errors import KVCorrupt
from services.core.ids import BlockId
from services.core.model_config import KVFormat

DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "float16": torch.float16}
"""Names in `KVFormat.dtype`."""


class KVCache:
    """`num_blocks` blocks of the given format. Implements `interface.KVAccess`."""

    def __init__(self, kv_format: KVFormat, num_blocks: int, device: torch.device) -> None:
        self._format = kv_format
        self._blocks = torch.zeros(
            (num_blocks, kv_format.layers, 2, kv_format.block_size, kv_format.kv_heads, kv_format.head_dim),
            dtype=DTYPES[kv_format.dtype],
            device=device,
        )
        self._bytes = self._blocks.view(num_blocks, -1).view(torch.uint8)  # [num_blocks, block_bytes]

    @property
    def format(self) -> KVFormat:
        return self._format

    @property
    def num_blocks(self) -> int:
        return self._blocks.shape[0]

    @property
    def device(self) -> torch.device:
        return self._blocks.device

    def layer(self, index: int) -> torch.Tensor:
        """Live view of one layer: `[num_blocks, 2 (k, v), block_size, kv_heads, head_dim]`."""
        return self._blocks[:, index]

    def clear(self, blocks: torch.Tensor) -> None:
        """Zero the blocks `[n]`, so that nothing an earlier owner left (a NaN, above all) is read as padding."""
        self._blocks[blocks] = 0

    def read_block(self, block: BlockId) -> memoryview:
        """See `KVAccess.read_block`."""
        return self._bytes[block].cpu().numpy().data.toreadonly()

    def write_block(self, block: BlockId, content: memoryview) -> None:
        """See `KVAccess.write_block`."""
        if content.nbytes != self._format.block_bytes:
            raise KVCorrupt(f"a block has {content.nbytes} bytes where its format has {self._format.block_bytes}")
        source = np.frombuffer(content, dtype=np.uint8)
        # A tensor may not stand on memory that is read-only.
        self._bytes[block].copy_(torch.from_numpy(source if source.flags.writeable else source.copy()))
