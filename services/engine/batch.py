"""The chunks of one step as tensors.

Owns the flat order of rows: chunk after chunk, one row per token. Must not know layers, or how rows attend.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from services.core.plan import Chunk


@dataclass(frozen=True, slots=True)
class Batch:
    """All rows of a step."""

    chunks: tuple[Chunk, ...]
    ends: tuple[int, ...]
    """Row after each chunk's last one, in the order of the plan."""
    block_size: int
    tokens: torch.Tensor  # [rows]
    positions: torch.Tensor  # [rows]
    blocks: torch.Tensor  # [rows], the block that keeps the row's KV
    offsets: torch.Tensor  # [rows], where in that block
    fresh: torch.Tensor  # [n], blocks whose first position is written in this step

    @staticmethod
    def of(chunks: Sequence[Chunk], block_size: int, device: torch.device) -> "Batch":
        """Lay the chunks out. A table too short for its chunk raises `IndexError`."""
        positions = [at for chunk in chunks for at in range(chunk.start, chunk.start + len(chunk.tokens))]
        blocks = [
            chunk.blocks[at // block_size]
            for chunk in chunks
            for at in range(chunk.start, chunk.start + len(chunk.tokens))
        ]
        offsets = [at % block_size for at in positions]
        fresh = [block for block, offset in zip(blocks, offsets, strict=True) if not offset]
        return Batch(
            chunks=tuple(chunks),
            ends=tuple(accumulate(len(chunk.tokens) for chunk in chunks)),
            block_size=block_size,
            tokens=torch.tensor([token for chunk in chunks for token in chunk.tokens], device=device),
            positions=torch.tensor(positions, device=device),
            blocks=torch.tensor(blocks, device=device),
            offsets=torch.tensor(offsets, device=device),
            fresh=torch.tensor(fresh, dtype=torch.int64, device=device),
        )

    @property
    def last_rows(self) -> tuple[int, ...]:
        """Row of each chunk's last token, in the order of the plan."""
        return tuple(end - 1 for end in self.ends)


def blocks_read(chunk: Chunk, block_size: int) -> tuple[int, ...]:
    """The part of a chunk's table that covers its context and itself."""
    return chunk.blocks[: -(-(chunk.start + len(chunk.tokens)) // block_size)]
