"""An arena as an array of page contents, and copies into it that take as long as they like."""

from dataclasses import dataclass
from zlib import crc32

from services.core.block_life import BlockState
from services.core.ids import BlockHash
from services.kvstore.block import Block
from services.kvstore.block_index import BlockIndex
from services.kvstore.pages import Grant, PageState

TORN = b"torn"


@dataclass(eq=False)
class Copy:
    """One memcpy of a worker into a page. It ends whenever it likes: the writer may long be taken for lost."""

    arena: "PageBytes"
    hash: BlockHash
    grant: Grant
    content: bytes
    is_running: bool = False
    is_done: bool = False

    def start(self) -> None:
        self.is_running = True
        self.arena.running.append(self)
        self.arena.contents[self.grant.page] = TORN

    def finish(self) -> None:
        self.is_running, self.is_done = False, True
        self.arena.running.remove(self)
        self.arena.contents[self.grant.page] = self.content

    def die(self) -> None:
        """With its process, halfway."""
        if self.is_running:
            self.is_running = False
            self.arena.running.remove(self)


class PageBytes:
    """The bytes behind the pages of one index."""

    def __init__(self, count: int) -> None:
        self.contents = [b""] * count
        self.running: list[Copy] = []
        self.rotten: set[int] = set()
        """Generations whose sealed page was damaged on purpose."""

    def checksum(self, page: int) -> int:
        return crc32(self.contents[page])

    def is_bad(self, block: Block) -> bool:
        return self.checksum(block.grant.page) != block.checksum

    def rot(self, block: Block) -> None:
        self.contents[block.grant.page] = b"rotten"
        self.rotten.add(block.grant.generation)

    def check(self, index: BlockIndex) -> None:
        """AssertionError if a page that is readable is not what was sealed, or a copy runs into a page lent again."""
        for block_hash in index.sealed():
            block = index.find(block_hash)
            assert block is not None and block.state is BlockState.SEALED
            assert self.is_bad(block) == (block.grant.generation in self.rotten), "a sealed page changed"
        for copy in self.running:
            assert index.pages.generation(copy.grant.page) == copy.grant.generation, "a copy lands in a later loan"
            state = index.pages.state(copy.grant.page)
            assert state in (PageState.LENT, PageState.QUARANTINED), "a copy runs into a page that is nobody's to write"
