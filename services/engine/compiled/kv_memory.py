"""The paged KV cache in host memory: one run of bytes per block, in the order of `KVFormat`.

Owns the memory; the kernels get its address. Must not know which block is whose, or free.
"""

from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import numpy as np
import numpy.typing as npt

from services.core.errors import KVCorrupt
from services.core.ids import BlockId
from services.core.model_config import WHOLE, KVFormat
from services.engine.compiled.kernels.rows import Cache


class KVMemory:
    """`num_blocks` blocks. Implements `interface.KVAccess`. The system gives pages when they are first written."""

    def __init__(self, kv_format: KVFormat, num_blocks: int) -> None:
        self._format = kv_format
        # Not numpy's memory: the C heap may hand out pages that are in use already, and then all of it would be.
        self._memory = mmap(-1, num_blocks * kv_format.block_bytes, MAP_PRIVATE | MAP_ANONYMOUS)
        self._blocks = np.frombuffer(self._memory, np.uint8).reshape(num_blocks, kv_format.block_bytes)

    @property
    def format(self) -> KVFormat:
        return self._format

    @property
    def num_blocks(self) -> int:
        return len(self._blocks)

    @property
    def blocks(self) -> npt.NDArray[np.uint8]:
        """`[num_blocks, block_bytes]`, the memory itself."""
        return self._blocks

    @property
    def view(self) -> Cache:
        """What the kernels know of it; valid while this object lives."""
        kv = self._format
        return Cache(
            self._blocks.ctypes.data,
            kv.block_bytes,
            kv.layer_bytes,
            kv.width,
            kv.block_size,
            kv.kv_heads,
            kv.head_dim,
        )

    def read_block(self, block: BlockId) -> memoryview:
        """See `KVAccess.read_block`."""
        return memoryview(self._blocks[block]).toreadonly()

    def write_block(self, block: BlockId, content: memoryview) -> None:
        """See `KVAccess.write_block`."""
        self.copy_in(block, content)

    def copy_out(self, block: BlockId, into: memoryview, part: slice = WHOLE) -> None:
        """See `KVAccess.copy_out`."""
        np.copyto(np.frombuffer(into, np.uint8), self._blocks[block, part])

    def copy_in(self, block: BlockId, content: memoryview, part: slice = WHOLE) -> memoryview:
        """See `KVAccess.copy_in`."""
        copy = self._blocks[block, part]
        if content.nbytes != copy.nbytes:
            raise KVCorrupt(f"there are {content.nbytes} bytes for {copy.nbytes} of a block")
        np.copyto(copy, np.frombuffer(content, np.uint8))
        return copy.data.toreadonly()
