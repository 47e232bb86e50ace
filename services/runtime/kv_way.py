"""How block bytes get from a worker's KV cache into a store and back: one interface, and a way for each location.

    near    the worker has mapped the store's arena and copies by itself        `kv_near.py`
    far     the bytes are streamed over gRPC, and the store copies              `kv_far.py`

Which one it is, is proven when the session opens (`kv_attachments.py`) and holds as long as the session.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from services.core.batch_events import FetchBlock, SealedBlock
from services.core.errors import DiptychError
from services.core.ids import BlockId, RequestKey
from services.core.model_config import WHOLE


class BlockBytes(Protocol):
    """Blocks of a KV cache as bytes; both are called on the transfer thread, for blocks that are pinned."""

    def copy_out(self, block: BlockId, into: memoryview, part: slice = WHOLE) -> None:
        """Copies a part of a block into as many bytes."""
        ...

    def copy_in(self, block: BlockId, content: memoryview, part: slice = WHOLE) -> memoryview:
        """Fills a part of a block, and returns what it was filled with, where nobody else can reach it. Raises
        KVCorrupt for a wrong length."""
        ...


class Lane(NamedTuple):
    """Which hand-over or loan, through the store at which address, for which span."""

    key: RequestKey
    store: str
    traceparent: str
    is_loan: bool = False


class GrantedBlock(NamedTuple):
    """To be put into the page that was lent for it."""

    block: SealedBlock
    generation: int
    page: int
    """-1 where the store copies."""


class WantedBlock(NamedTuple):
    """To be got out of the page where it is."""

    block: FetchBlock
    generation: int
    page: int
    """-1 where the store copies."""
    checksum: int


@dataclass(frozen=True, slots=True)
class PutCalls:
    """What became of the blocks; on the loop thread."""

    copied: Callable[[Sequence[SealedBlock], int], None]
    """So many bytes in all; nothing reads these blocks any more."""
    failed: Callable[[SealedBlock, DiptychError], None]
    """It will not be sealed."""


@dataclass(frozen=True, slots=True)
class GetCalls:
    """What became of each block; on the loop thread."""

    landed: Callable[[FetchBlock, int], None]
    """So many bytes; it is verified and filled in."""
    bad: Callable[[FetchBlock, DiptychError], None]
    """What came is not the block, or nothing came."""


class Way(Protocol):
    """Both verbs return, or raise, only when no copy runs; they raise what concerns all of the blocks. The thread they
    copy on holds a cancellation back until then."""

    name: Literal["near", "far"]

    async def put(self, lane: Lane, blocks: Sequence[GrantedBlock], tell: PutCalls) -> None:
        """All are sealed when it returns, but for those that failed."""

    async def get(self, lane: Lane, blocks: Sequence[WantedBlock], tell: GetCalls) -> None:
        """Each has landed or is bad when it returns."""
