"""Which tokens go into the next step: a pure function of the rows, after Sarathi-Serve (Agrawal et al., OSDI 2024).

Every request with one remaining token is in every step, so no prompt, however long, stalls an answer. What the
step's time budget leaves goes to the prompts in order of importance, as one chunk each. The first prompt gets at
least one block even if the decode rows alone fill the budget: no number of answers stops a prompt, and on a machine so
busy that a step's fixed part alone fills the budget, chunks of single tokens would only multiply that part.

With `even_chunks` those of a prompt that is alone take equally long, as far as that is known: each one's blocks are on
their way while the next is computed, so a last chunk that were only what the others left over would wait for theirs.
"""

from collections.abc import Sequence

from services.core.batch_limits import BatchLimits
from services.core.plan import Chunk
from services.core.progress import Progress
from services.core.step_cost import StepCost

MOST_EVEN = 64
"""A prompt that takes more chunks than these is far from its last."""


def compose(rows: Sequence[Progress], limits: BatchLimits, cost: StepCost) -> tuple[Chunk, ...]:
    """Chunks of one step; `rows` may be computed up to their last known token, the most important first."""
    decodes = [row for row in rows if row.remaining == 1]
    prompts = [row for row in rows if row.remaining > 1]
    chunks = [row.chunk(1) for row in decodes]
    seconds = cost.of((1, row.computed) for row in decodes)
    for row in prompts:
        room_for_one = seconds + cost.chunk(1, row.computed) <= limits.step_seconds
        if not room_for_one and row is not prompts[0]:
            break
        room = limits.step_seconds - seconds
        if limits.even_chunks and len(prompts) == 1:
            room = _even(row, room, cost)
        stretch = row.stretch(limits.block_size)
        length = cost.longest_chunk(seconds + room, row.computed, seconds, stretch)
        if row is prompts[0]:
            length = max(length, min(stretch, limits.block_size))
        chunks.append(row.chunk(length))
        seconds += cost.chunk(length, row.computed)
    return tuple(chunks)


def _even(row: Progress, room: float, cost: StepCost) -> float:
    """Seconds for this chunk, of at most `room`, if all that remains is cut into as few chunks of equal time."""
    computed, end = row.computed, row.computed + row.remaining
    seconds, chunks = 0.0, 0
    while computed < end:
        if chunks == MOST_EVEN:
            return room
        length = cost.longest_chunk(room, computed, 0.0, end - computed)
        seconds += cost.chunk(length, computed)
        computed += length
        chunks += 1
    return min(room, seconds / chunks)
