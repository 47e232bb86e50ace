"""Reserved blocks that transfers are filling: each is pinned here until its copy returned, whatever became of the
request. Knows neither the transfers nor how far the request is."""

from collections.abc import Iterable

from services.core.block_pool import BlockPool
from services.core.ids import BlockId, RequestKey


class Fetching:
    """Every verb is legal in every state and does nothing where there is nothing left to end."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._blocks: dict[RequestKey, dict[int, BlockId]] = {}

    def begin(self, key: RequestKey, blocks: Iterable[tuple[int, BlockId]]) -> None:
        """Pin each (index, block) of a request's table."""
        begun = dict(blocks)
        for block in begun.values():
            self._pool.pin(block)
        if begun:
            self._blocks[key] = begun

    def end(self, key: RequestKey, index: int) -> BlockId | None:
        """The copy into block `index` returned; None if none was open."""
        block = self._blocks.get(key, {}).pop(index, None)
        if block is not None:
            self._pool.unpin(block)
            self._close_if_empty(key)
        return block

    def end_all(self, key: RequestKey) -> None:
        """No copy for this request runs any more."""
        for index in tuple(self._blocks.get(key, ())):
            self.end(key, index)

    def find(self, block: BlockId) -> tuple[RequestKey, int] | None:
        """Whose table the block is being filled for, and its index there."""
        for key, blocks in self._blocks.items():
            for index, candidate in blocks.items():
                if candidate == block:
                    return key, index
        return None

    def is_open(self, key: RequestKey) -> bool:
        return key in self._blocks

    def count(self, key: RequestKey) -> int:
        """Blocks being filled for this request."""
        return len(self._blocks.get(key, ()))

    def _close_if_empty(self, key: RequestKey) -> None:
        if not self._blocks[key]:
            del self._blocks[key]
