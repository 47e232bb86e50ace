"""Names of full blocks: a hash chained over everything before the block, equal in every process.

A chain starts at a root (weights fingerprint and tenant salt) and takes in one full block of tokens at a time, so two
blocks have one name only if they stand behind the same weights, salt and tokens. Every field goes in with its length
and at a fixed width, and roots and blocks are hashed under different personalizations, so nothing collides by
concatenation. Knows nothing of KV bytes or their format: that is a key field of its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import pack

from services.core.ids import BlockHash

DIGEST_BYTES = 32
_ROOT = b"diptych.root.1"
_BLOCK = b"diptych.block.1"


@dataclass(frozen=True, slots=True)
class FullBlock:
    """A full block's name and its own tokens; the tokens tell a hit from a collision."""

    hash: BlockHash
    tokens: tuple[int, ...]


def root(fingerprint: bytes, salt: bytes) -> BlockHash:
    """Where the chains of one model and one tenant start."""
    digest = blake2b(digest_size=DIGEST_BYTES, person=_ROOT)
    for part in (fingerprint, salt):
        digest.update(pack("<Q", len(part)))
        digest.update(part)
    return BlockHash(digest.digest())


def chain(parent: BlockHash, tokens: Sequence[int]) -> BlockHash:
    """The name of the block that holds `tokens` (each in 0..2^32-1) and follows `parent`."""
    digest = blake2b(digest_size=DIGEST_BYTES, person=_BLOCK)
    digest.update(pack("<Q", len(parent)))
    digest.update(parent)
    digest.update(pack(f"<Q{len(tokens)}I", len(tokens), *tokens))
    return BlockHash(digest.digest())


def hashes(start: BlockHash, tokens: Sequence[int], block_size: int) -> tuple[BlockHash, ...]:
    """Names of the full blocks of `tokens`; a partial last block has none."""
    return tuple(block.hash for block in Chain(start, block_size, tokens).full)


class BlockNames:
    """Names of the full blocks of one request's tokens, which only grow: each is computed once, when asked for."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self._known: dict[tuple[bytes, int], list[BlockHash]] = {}

    def of(self, tokens: Sequence[int], fingerprint: bytes, block_size: int) -> Sequence[BlockHash]:
        """As workers of this model and block size name them."""
        names = self._known.setdefault((fingerprint, block_size), [])
        last = names[-1] if names else root(fingerprint, self._salt)
        for end in range((len(names) + 1) * block_size, len(tokens) + 1, block_size):
            last = chain(last, tokens[end - block_size : end])
            names.append(last)
        return names


class Chain:
    """Tokens that only grow, and the full blocks they make."""

    def __init__(self, start: BlockHash, block_size: int, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self.full: list[FullBlock] = []
        self._block_size = block_size
        self._last = start
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        self.tokens.append(token)
        if len(self.tokens) % self._block_size == 0:
            tokens = tuple(self.tokens[-self._block_size :])
            self._last = chain(self._last, tokens)
            self.full.append(FullBlock(self._last, tokens))
