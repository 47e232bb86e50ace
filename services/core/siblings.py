"""Prompts with one beginning that come together: it is computed once, and found by the others."""

from collections.abc import Iterable
from itertools import takewhile

from services.core.progress import Progress, State
from services.core.request import Role


def is_computed_ahead(progress: Progress, rows: Iterable[Progress], block_size: int) -> bool:
    """A prompt before it in rank is about to compute the next block that both begin with: better found than computed
    twice. `rows` hold blocks, the most important first.

    Only among PREFILL, where the step's time goes to that prompt first anyway, so that waiting holds up nobody.
    """
    wanted = progress.reusable_blocks(block_size) if progress.request.role is Role.PREFILL else []
    for row in takewhile(lambda row: row.rank < progress.rank, rows):
        if row.request.role is Role.PREFILL and row.state is State.RUNNING:
            reached = row.computed // block_size
            common = min(len(wanted), len(row.chain.full))
            if reached < common and row.chain.full[reached].hash == wanted[reached].hash:
                return True
    return False
