"""How each worker would come by a prompt's KV: found in its cache, fetched from a store, or computed. Pure."""

from dataclasses import dataclass

import numpy as np

from services.scheduler import cost_model
from services.scheduler.asking import Asking
from services.scheduler.cost_model import FAR_BYTES_PER_SECOND, NEAR_BYTES_PER_SECOND, Costs, Floats
from services.scheduler.worker_table import WorkerTable


@dataclass(frozen=True, slots=True)
class Beginning:
    """How each worker of a kind would come by the prompt's KV."""

    cached: Floats
    """Blocks that it has or fetches."""
    local: Floats
    """Blocks that it has."""
    transfer: Floats
    seconds: Floats
    computing: cost_model.Prefill


def beginning_of(asking: Asking, table: WorkerTable, costs: Costs, beside: Floats | float) -> Beginning:
    """What is cheaper: to compute all that it has not, or to fetch first what the best store has."""
    size, tokens, pace = table.block_size, len(asking.request.tokens), table.column("pace")
    local = _local_blocks(asking, table)
    recomputed = cost_model.prefill(costs, tokens - local * size, local * size, size, beside)
    stored, rate = _stored_blocks(asking, table)
    if not stored or not (local < stored).any():
        none = np.zeros(len(table))
        return Beginning(local, local, none, recomputed.seconds * pace, recomputed)
    whole = np.full(len(table), float(stored))
    after = cost_model.prefill(costs, tokens - whole * size, whole * size, size, beside)
    transfer = cost_model.move(np.maximum(whole - local, 0.0) * table.block_bytes, rate)
    fetched = (local < stored) & (transfer + after.seconds * pace < recomputed.seconds * pace)
    computing = cost_model.Prefill(
        np.where(fetched, after.seconds, recomputed.seconds), np.where(fetched, after.steps, recomputed.steps)
    )
    moved = np.where(fetched, transfer, 0.0)
    return Beginning(np.where(fetched, whole, local), local, moved, computing.seconds * pace, computing)


def _local_blocks(asking: Asking, table: WorkerTable) -> Floats:
    """Blocks of the prompt that each worker has probably in its own cache."""
    blocks = np.zeros(len(table))
    cached = asking.view.estimates.cached
    if len(cached):
        for count, workers in cached.longest(asking.hashes(table)):
            blocks[table.rows(workers)] = count
    return blocks


def _stored_blocks(asking: Asking, table: WorkerTable) -> tuple[int, Floats]:
    """The most blocks of the prompt that a store has which this kind reaches, and how fast each worker gets them."""
    if not asking.rules.may_fetch or not (held := asking.held(table)):
        return 0, np.empty(0)
    # The last token is computed wherever the prompt goes, so the block that it completes is worth nothing.
    useful = (len(asking.request.tokens) - 1) // table.block_size
    stores = table.kind.stores - asking.view.unready_stores
    reached = {store: min(blocks, useful) for store, blocks in held.items() if store in stores}
    if not reached:
        return 0, np.empty(0)
    most = max(reached.values())
    near = table.are_near({store for store, blocks in reached.items() if blocks == most})
    return most, np.where(near, NEAR_BYTES_PER_SECOND, FAR_BYTES_PER_SECOND)
