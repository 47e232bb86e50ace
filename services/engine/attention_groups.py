"""How the torch backend groups a step's chunks so that few tensor operations serve many.

chunks   |a a a a|b|c c|d|        rows 0..7, one per token
singles   b, d                    chunks of one token: attended to in padded groups
runs      a, c                    longer chunks: attended to one by one
"""

from collections import defaultdict
from dataclasses import dataclass

import torch

from services.core.plan import Chunk
from services.engine.batch import Batch, blocks_read


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
    table: torch.Tensor  # [1, blocks]
    context: int
    """Positions to attend to: those before the chunk and its own."""
    mask: torch.Tensor | None
    """`[tokens, context]`, added to the scores; None where the chunk is its whole context (plainly causal)."""


def singles_of(batch: Batch) -> tuple[Singles, ...]:
    """Groups in which no table is more than twice as long as another, so padding at most doubles the work."""
    groups: dict[int, list[tuple[Chunk, int]]] = defaultdict(list)
    for chunk, end in zip(batch.chunks, batch.ends, strict=True):
        if len(chunk.tokens) == 1:
            groups[len(blocks_read(chunk, batch.block_size)).bit_length()].append((chunk, end - 1))
    return tuple(_group(members, batch) for members in groups.values())


def runs_of(batch: Batch) -> tuple[Run, ...]:
    return tuple(
        _run(chunk, end, batch) for chunk, end in zip(batch.chunks, batch.ends, strict=True) if len(chunk.tokens) > 1
    )


def _group(members: list[tuple[Chunk, int]], batch: Batch) -> Singles:
    tables = [blocks_read(chunk, batch.block_size) for chunk, _ in members]
    width = max(len(table) for table in tables)
    device = batch.positions.device
    lasts = torch.tensor([chunk.start for chunk, _ in members], device=device)
    return Singles(
        rows=torch.tensor([row for _, row in members], device=device),
        tables=torch.tensor([(*table, *(table[:1] * (width - len(table)))) for table in tables], device=device),
        mask=_mask(lasts, width * batch.block_size)[:, None, None],
    )


def _run(chunk: Chunk, end: int, batch: Batch) -> Run:
    size = len(chunk.tokens)
    context = chunk.start + size
    device = batch.positions.device
    return Run(
        rows=slice(end - size, end),
        table=torch.tensor([blocks_read(chunk, batch.block_size)], device=device),
        context=context,
        mask=_mask(torch.arange(chunk.start, context, device=device), context) if chunk.start else None,
    )


def _mask(lasts: torch.Tensor, width: int) -> torch.Tensor:
    """`[rows, width]`: 0 up to and including the row's last position, -inf beyond."""
    beyond = torch.arange(width, device=lasts.device) > lasts[:, None]
    return torch.zeros(beyond.shape, device=lasts.device).masked_fill_(beyond, float("-inf"))
