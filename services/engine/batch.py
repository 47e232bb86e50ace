"""The chunks of one step as tensors.

Owns the flat order of rows (chunk after chunk) and the grouping that attention works in. Must not know layers.

    chunks   |a a a a|b|c c|d|        rows 0..7, one per token
    singles   b, d                    chunks of one token: attended to in padded groups
    runs      a, c                    longer chunks: attended to one by one
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from services.core.plan import Chunk


@dataclass(frozen=True, slots=True)
class Singles:
    """Chunks of one token whose contexts are of similar length."""

    rows: torch.Tensor  # [n]
    tables: torch.Tensor
    """`[n, blocks]`; a shorter table is filled up with its own first block, so that no row ever reads a stranger's."""
    mask: torch.Tensor
    """`[n, 1, 1, blocks × block_size]`, added to the scores: 0 for the row's context and itself, else -inf."""


@dataclass(frozen=True, slots=True)
class Run:
    """A chunk of several tokens."""

    rows: slice
    table: torch.Tensor  # [blocks]
    context: int
    """Positions to attend to: those before the chunk and its own."""
    mask: torch.Tensor | None
    """`[tokens, context]`, added to the scores; None where the chunk is its whole context (plainly causal)."""


@dataclass(frozen=True, slots=True)
class Batch:
    """All rows of a step."""

    tokens: torch.Tensor  # [rows]
    positions: torch.Tensor  # [rows]
    blocks: torch.Tensor  # [rows], the block that keeps the row's KV
    offsets: torch.Tensor  # [rows], where in that block
    last_rows: tuple[int, ...]
    """Row of each chunk's last token, in the order of the plan."""
    singles: tuple[Singles, ...]
    runs: tuple[Run, ...]

    @staticmethod
    def of(chunks: Sequence[Chunk], block_size: int, device: torch.device) -> "Batch":
        """Lay the chunks out. A table too short for its chunk raises `IndexError`."""
        ends = list(accumulate(len(chunk.tokens) for chunk in chunks))
        positions = [range(chunk.start, chunk.start + len(chunk.tokens)) for chunk in chunks]
        blocks = [chunk.blocks[at // block_size] for chunk, span in zip(chunks, positions, strict=True) for at in span]
        flat_positions = torch.tensor([at for span in positions for at in span], device=device)
        return Batch(
            tokens=torch.tensor([token for chunk in chunks for token in chunk.tokens], device=device),
            positions=flat_positions,
            blocks=torch.tensor(blocks, device=device),
            offsets=flat_positions % block_size,
            last_rows=tuple(end - 1 for end in ends),
            singles=_singles(chunks, ends, block_size, device),
            runs=tuple(
                _run(chunk, end, block_size, device)
                for chunk, end in zip(chunks, ends, strict=True)
                if len(chunk.tokens) > 1
            ),
        )


def _singles(chunks: Sequence[Chunk], ends: list[int], block_size: int, device: torch.device) -> tuple[Singles, ...]:
    """Groups in which no table is more than twice as long as another, so padding at most doubles the work."""
    groups: dict[int, list[tuple[Chunk, int]]] = defaultdict(list)
    for chunk, end in zip(chunks, ends, strict=True):
        if len(chunk.tokens) == 1:
            groups[_blocks_read(chunk, block_size).bit_length()].append((chunk, end - 1))
    return tuple(_group(members, block_size, device) for members in groups.values())


def _group(members: list[tuple[Chunk, int]], block_size: int, device: torch.device) -> Singles:
    width = max(_blocks_read(chunk, block_size) for chunk, _ in members)
    tables = [_padded(chunk.blocks[: _blocks_read(chunk, block_size)], width) for chunk, _ in members]
    lasts = torch.tensor([chunk.start for chunk, _ in members], device=device)
    return Singles(
        rows=torch.tensor([row for _, row in members], device=device),
        tables=torch.tensor(tables, device=device),
        mask=_mask(lasts, width * block_size)[:, None, None],
    )


def _run(chunk: Chunk, end: int, block_size: int, device: torch.device) -> Run:
    size = len(chunk.tokens)
    context = chunk.start + size
    lasts = torch.arange(chunk.start, context, device=device)
    return Run(
        rows=slice(end - size, end),
        table=torch.tensor(chunk.blocks[: _blocks_read(chunk, block_size)], device=device),
        context=context,
        mask=_mask(lasts, context) if chunk.start else None,
    )


def _blocks_read(chunk: Chunk, block_size: int) -> int:
    return -(-(chunk.start + len(chunk.tokens)) // block_size)


def _padded(table: tuple[int, ...], width: int) -> list[int]:
    return [*table, *[table[0]] * (width - len(table))]


def _mask(lasts: torch.Tensor, width: int) -> torch.Tensor:
    """`[rows, width]`: 0 up to and including the row's last position, -inf beyond."""
    beyond = torch.arange(width, device=lasts.device) > lasts[:, None]
    return torch.zeros(beyond.shape, device=lasts.device).masked_fill_(beyond, float("-inf"))
