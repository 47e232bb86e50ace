"""The bytes: one page per block, all pages reserved up front. A page means nothing until the index says it is sealed.

The seam for a shared-memory arena is here: pages by number, written in parts, viewed as a whole. Knows neither hashes
nor hand-overs.
"""

import mmap

import xxhash


class Storage:
    """`num_pages` pages of `page_bytes` each, addressed 0..num_pages-1."""

    def __init__(self, page_bytes: int, num_pages: int) -> None:
        self.page_bytes = page_bytes
        self.num_pages = num_pages
        # Anonymous memory rather than a bytearray: reserved at once, filled with zeros only as it is touched.
        self._memory = memoryview(mmap.mmap(-1, page_bytes * num_pages))

    def write(self, page: int, offset: int, part: bytes) -> None:
        """Copies `part` into the page. Raises ValueError where it does not fit."""
        if offset + len(part) > self.page_bytes:
            raise ValueError("the part goes beyond its page")
        start = page * self.page_bytes + offset
        self._memory[start : start + len(part)] = part

    def read(self, page: int, offset: int, count: int) -> bytes:
        """A copy of at most `count` bytes from `offset` on."""
        start = page * self.page_bytes + offset
        end = (page + 1) * self.page_bytes
        return bytes(self._memory[start : min(start + count, end)])

    def checksum(self, page: int) -> int:
        """xxh3-64 of the whole page."""
        start = page * self.page_bytes
        return xxhash.xxh3_64_intdigest(self._memory[start : start + self.page_bytes])
