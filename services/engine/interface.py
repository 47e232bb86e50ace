"""What a worker asks of an engine, whatever computes it (torch, compiled loops, a GPU, a script in a test).

Owns the two protocols. Must not know any implementation.
"""

from typing import Protocol

from services.core.ids import BlockId
from services.core.model_config import KVFormat
from services.core.plan import StepPlan, StepResult


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


class StepRunner(Protocol):
    """Computes steps. One thread calls `execute`, one step at a time; it returns when the step is done."""

    @property
    def kv(self) -> KVAccess: ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Compute every chunk and draw where asked. A request whose own row goes wrong is in `failed`; any exception
        means that the engine as a whole is broken."""
        ...
