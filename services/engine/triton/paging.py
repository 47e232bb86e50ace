"""A step's rows as the attention kernels want them.

Owns the block tables on the device and which chunk goes to which kernel: one token to decode, more to prefill.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from services.engine.batch import Batch, blocks_read


@dataclass(frozen=True, slots=True)
class Singles:
    """Chunks of one token. Each tensor `[n]`, int32."""

    chunks: torch.Tensor
    rows: torch.Tensor
    contexts: torch.Tensor
    """Positions to attend to, the row's own among them."""
    longest: int


@dataclass(frozen=True, slots=True)
class Runs:
    """Chunks of several tokens. Each tensor `[n]`, int32."""

    chunks: torch.Tensor
    rows: torch.Tensor
    """First row of the chunk."""
    starts: torch.Tensor
    """Position of that row."""
    sizes: torch.Tensor
    longest: int
    """Rows of the longest chunk."""


@dataclass(frozen=True, slots=True)
class Paging:
    """All chunks of a step."""

    tables: torch.Tensor
    """`[chunks, blocks]`, int32; a shorter table is filled up with block 0, which is never read."""
    singles: Singles | None
    runs: Runs | None

    @staticmethod
    def of(batch: Batch) -> "Paging":
        tables = [blocks_read(chunk, batch.block_size) for chunk in batch.chunks]
        width = max(map(len, tables))
        device = batch.positions.device
        return Paging(
            tables=_int32([(*table, *(0,) * (width - len(table))) for table in tables], device),
            singles=_singles(batch, device),
            runs=_runs(batch, device),
        )


def _singles(batch: Batch, device: torch.device) -> Singles | None:
    members = [
        (at, end - 1, chunk.start + 1)
        for at, (chunk, end) in enumerate(zip(batch.chunks, batch.ends, strict=True))
        if len(chunk.tokens) == 1
    ]
    if not members:
        return None
    chunks, rows, contexts = zip(*members, strict=True)
    return Singles(_int32(chunks, device), _int32(rows, device), _int32(contexts, device), longest=max(contexts))


def _runs(batch: Batch, device: torch.device) -> Runs | None:
    members = [
        (at, end - len(chunk.tokens), chunk.start, len(chunk.tokens))
        for at, (chunk, end) in enumerate(zip(batch.chunks, batch.ends, strict=True))
        if len(chunk.tokens) > 1
    ]
    if not members:
        return None
    chunks, rows, starts, sizes = zip(*members, strict=True)
    return Runs(
        chunks=_int32(chunks, device),
        rows=_int32(rows, device),
        starts=_int32(starts, device),
        sizes=_int32(sizes, device),
        longest=max(sizes),
    )


def _int32(numbers: Iterable[int] | Iterable[tuple[int, ...]], device: torch.device) -> torch.Tensor:
    return torch.tensor(list(numbers), dtype=torch.int32, device=device)
