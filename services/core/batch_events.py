"""What the batcher reports: facts that the worker's shell turns into messages, transfers, metrics and spans."""

from dataclasses import dataclass, field

from services.core.errors import DiptychError
from services.core.ids import BlockHash, BlockId, RequestKey
from services.core.plan import TokenLogprobs
from services.core.request import FinishReason


@dataclass(frozen=True, slots=True)
class FetchBlock:
    """A reserved block to be filled with the block of this hash."""

    index: int
    """Place in the request's block table."""
    hash: BlockHash
    block: BlockId


@dataclass(frozen=True, slots=True)
class SealedBlock:
    """A full block whose KV is computed and no longer changes."""

    index: int
    hash: BlockHash
    block: BlockId
    tokens: tuple[int, ...]
    """Exactly one block of them."""


@dataclass(frozen=True, slots=True)
class Started:
    """The request left the queue and holds blocks; comes again after `Preempted`."""

    key: RequestKey
    cached_tokens: int = field(default=0, compare=False)
    """Tokens of the prompt whose KV was found here at the first start."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """A request holds blocks for its known tokens; `fetch` are those to be filled: of DECODE what is handed over, maybe
    none; of the others what a store is said to have cached and is worth fetching.

    Each is pinned until `landed`, `unpin` or `no_more` says that its copy returned, also when the request is gone.
    """

    key: RequestKey
    fetch: tuple[FetchBlock, ...]


@dataclass(frozen=True, slots=True)
class Sealed:
    """Blocks that became full here, for every role; for PREFILL also those it found cached or fetched.

    Those of the batcher's `copied` roles are pinned: whoever copies them out calls `unpin` once for each. After
    `Preempted` the same indexes may come again.
    """

    key: RequestKey
    blocks: tuple[SealedBlock, ...]


@dataclass(frozen=True, slots=True)
class Emitted:
    """A token of the answer; `index` counts from 0 over all attempts."""

    key: RequestKey
    index: int
    token: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request that went well; its blocks are released."""

    key: RequestKey
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a request that went wrong; its blocks are released."""

    key: RequestKey
    error: DiptychError


@dataclass(frozen=True, slots=True)
class Preempted:
    """The request gave its blocks to a more important one and is queued again, its emitted tokens kept."""

    key: RequestKey


Event = Started | Reserved | Sealed | Emitted | Finished | Failed | Preempted
