"""What a worker asks of an engine, whatever computes it (torch, compiled loops, a GPU, a script in a test).

Owns the protocols. Must not know any implementation.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from services.core.ids import BlockId
from services.core.memory import EngineMemory
from services.core.model_config import WHOLE, KVFormat
from services.core.plan import Chunk, StepPlan, StepResult


class KVAccess(Protocol):
    """Whole blocks of the KV cache as bytes, for the thread that moves them in and out.

    Takes no locks: a block is moved only while it is pinned, so no step writes it meanwhile.
    """

    @property
    def format(self) -> KVFormat: ...

    @property
    def num_blocks(self) -> int: ...

    def read_block(self, block: BlockId) -> memoryview:
        """The `format.block_bytes` of a block, read-only and, where the cache is host memory, without a copy:
        what is done with it is done before the block is unpinned."""
        ...

    def write_block(self, block: BlockId, content: memoryview) -> None:
        """Fill a block. Raises `KVCorrupt` if the content is not exactly `format.block_bytes` long."""
        ...

    def copy_out(self, block: BlockId, into: memoryview, part: slice = WHOLE) -> None:
        """Copy a part of a block into memory of that size; other threads run meanwhile."""
        ...

    def copy_in(self, block: BlockId, content: memoryview, part: slice = WHOLE) -> memoryview:
        """Fill a part of a block, as `write_block` does, while other threads run; `content` is read once.

        Returns the bytes that were filled in, in host memory that the writer of `content` cannot reach, so that
        whoever verifies them verifies what is in the block. To be looked at before the next call.
        """
        ...


class StepRunner(Protocol):
    """Computes steps. One thread calls `execute`, one step at a time; it returns when the step is done."""

    @property
    def kv(self) -> KVAccess: ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute every chunk and draw where asked. A request whose own row goes wrong is in `failed`; any exception
        means that the engine as a whole is broken."""
        ...

    def memory(self) -> EngineMemory:
        """What is resident now; any thread may ask, also during a step. Raises `OSError` where the system does not
        tell."""
        ...


class WholeLogits(Protocol):
    """What a measurement asks of an engine beyond steps."""

    def every_logits(self, chunk: Chunk) -> Iterator[npt.NDArray[np.float32]]:
        """Logits after each token of a chunk, `[rows, vocab]` some rows at a time, in order; its KV is in the cache
        afterwards. Rows are overwritten when the next ones are asked for. Between steps only."""
        ...
