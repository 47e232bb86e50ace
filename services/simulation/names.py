"""Names of a recorded prompt's full blocks, at the block size that is simulated."""

from services.simulation.traces import TRACE_BLOCK, TraceRequest

_PER_REQUEST = 1 << 24
"""More blocks than any prompt has."""


def names_of(row: TraceRequest, number: int, block_size: int) -> tuple[int, ...]:
    """Equal where the trace says that prompts are equal; a trace that says nothing of it shares nothing."""
    if not row.blocks or TRACE_BLOCK % block_size:
        first = -1 - number * _PER_REQUEST
        return tuple(range(first, first - row.prompt // block_size, -1))
    if block_size == TRACE_BLOCK:
        return row.blocks
    parts = TRACE_BLOCK // block_size
    return tuple(name * parts + part for name in row.blocks for part in range(parts))
