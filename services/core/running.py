"""The requests that hold blocks on one worker, and every change of what they hold: start, fetch, grow, preempt, leave.

Owns the block pool and the pins of transfers. Must not know the queue, nor when steps happen. Only `start` and
`grow` take blocks from a request unasked, and only for one before it in rank. Ranks never change, so nobody is
preempted for one that it preempts in turn, and the first in rank keeps what it has until it ends.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain

from services.core.batch_events import Event, FetchBlock, Preempted, Reserved, Sealed, SealedBlock, Started
from services.core.batch_limits import BatchLimits
from services.core.block_pool import BlockPool, Reservation
from services.core.blocks import FullBlock
from services.core.fetching import Fetching
from services.core.ids import BlockId
from services.core.prefix_fetch import blocks_worth_fetching
from services.core.progress import Progress, State
from services.core.request import Role
from services.core.reuse import Reuse
from services.core.siblings import is_computed_ahead
from services.core.step_cost import StepCost


class Running:
    """Ordered by rank, the most important first."""

    def __init__(self, limits: BatchLimits, copied: frozenset[Role]) -> None:
        self.pool = BlockPool(limits.num_blocks)
        self.fetching = Fetching(self.pool)
        self.reuse = Reuse()
        self._limits = limits
        self._copied = copied
        """Roles whose sealed blocks somebody copies out."""
        self._rows: list[Progress] = []

    def __len__(self) -> int:
        return len(self._rows)

    def computable(self) -> list[Progress]:
        """Rows whose blocks cover all their known tokens; the others wait for a transfer or for room."""
        return [row for row in self._rows if row.state is State.RUNNING and not self._lacking(row)]

    def is_computing_for(self, progress: Progress) -> bool:
        """Blocks that it will find if it waits."""
        return is_computed_ahead(progress, self._rows, self._limits.block_size)

    def start(self, progress: Progress, now: float, cost: StepCost) -> list[Event]:
        """Give a waiting request its blocks, all or none, if need be at the cost of those behind it in rank.

        No event and no change if there is no room.
        """
        prefix, count = self._demand(progress)
        victims = self._giving_way_to(progress, lambda gone: self._may_start(prefix, count, gone))
        if victims is None:
            return []
        events = [self._preempt(victim, now) for victim in victims]
        reservation = self._take(prefix, count)
        progress.blocks = list(reservation.blocks)
        progress.computed = reservation.hits * self._limits.block_size
        if progress.cached_tokens is None:
            progress.cached_tokens = min(progress.computed, len(progress.request.prompt))
        progress.state = State.FETCHING
        progress.moved = now
        insort(self._rows, progress, key=lambda row: row.rank)
        events.append(Started(progress.key, progress.cached_tokens))
        if progress.request.role is Role.PREFILL:
            events += self._announce(progress, reservation.hits)
        progress.told = reservation.hits
        if wanted := self._wanted(progress, reservation.hits, cost):
            progress.wants_fetch = True
            events.append(self._begin_fetch(progress, wanted))
        elif progress.wants_fetch:
            events.append(Reserved(progress.key, ()))
        self.settle(progress)
        return events

    def land(self, progress: Progress, index: int) -> None:
        """A block was filled: it counts, and is sealed, once all before it are."""
        progress.landed.add(index)
        self._skip_landed(progress)

    def settle(self, progress: Progress) -> None:
        """Compute from now on, if nothing is awaited any more and the first token did not end the answer."""
        is_awaiting = progress.awaits_first or self.fetching.is_open(progress.key)
        if progress.state is not State.FETCHING or is_awaiting:
            return
        if self._limits.ending(progress.request, progress.answered, progress.chain.tokens[-1]) is None:
            progress.state = State.RUNNING

    def grow(self, now: float) -> list[Event]:
        """Blocks for every running request's known tokens, if need be at the cost of those behind it in rank.

        A request for which there is no room even so waits, keeping what it has.
        """
        events: list[Event] = []
        for row in tuple(self._rows):
            if row.state is State.RUNNING and (lacking := self._lacking(row)):
                events += self._extend(row, lacking, now)
        return events

    def announce(self) -> list[Event]:
        """Blocks that have landed since, of requests that compute from now on."""
        return [event for row in self._rows if row.state is State.RUNNING for event in self._announce_full(row)]

    def advance(self, progress: Progress, tokens: int) -> list[Event]:
        """`tokens` more positions are computed; the blocks that became full are sealed, and those that landed behind
        them count."""
        self.reuse.computing(progress, tokens)
        before = progress.computed // self._limits.block_size
        progress.computed += tokens
        after = progress.computed // self._limits.block_size
        for index in range(before, after):
            self.pool.seal(progress.blocks[index], progress.chain.full[index])
        events = self._announce_full(progress)
        self._skip_landed(progress)
        return events + self._announce_full(progress)

    def remove(self, progress: Progress) -> None:
        """It takes no further part; its blocks are still held until `release`."""
        self._rows.remove(progress)

    def release(self, progress: Progress) -> None:
        """Its blocks are let go; those sealed stay cached, those pinned stay used."""
        self.pool.release(progress.blocks)
        progress.blocks = []
        progress.landed.clear()
        progress.computed = progress.told = 0

    def distrust(self, progress: Progress) -> None:
        """Its KV led to no valid logits: nobody else shall hit these blocks, or a retry fails for ever."""
        for block in progress.blocks:
            self.pool.forget(block)

    def blocks_of(self, progress: Progress) -> int:
        """Blocks in use for a request, also for one that is gone while transfers still fill them."""
        return len(progress.blocks) or self.fetching.count(progress.key)

    def check_invariants(self, leaving: list[Progress]) -> None:
        """AssertionError if the books do not balance; `leaving` are removed but not yet released."""
        self.pool.check_invariants()
        held = Counter(block for row in (*self._rows, *leaving) for block in row.blocks)
        for block in map(BlockId, range(self._limits.num_blocks)):
            assert self.pool.holders(block) == held[block], f"block {block} is held by nobody known, or twice"
        assert [row.rank for row in self._rows] == sorted(row.rank for row in self._rows), "running out of order"
        for row in self._rows:
            self._check_row(row)

    def _check_row(self, row: Progress) -> None:
        size = self._limits.block_size
        assert len(set(row.blocks)) == len(row.blocks), "a block twice in one table"
        assert row.computed <= len(row.blocks) * size, "computed positions without a block"
        if row.state is State.RUNNING:
            assert row.remaining > 0, "nothing left to draw from"
        for block in row.blocks[row.computed // size :]:
            assert self.pool.holders(block) == 1 and not self.pool.is_sealed(block), "a shared block would be written"

    def _wanted(self, progress: Progress, hits: int, cost: StepCost) -> range:
        """Indexes of the blocks to be filled from elsewhere."""
        size = self._limits.block_size
        if progress.wants_fetch:
            return range(hits, len(progress.handed_blocks(size)))
        most = len(progress.reusable_blocks(size))
        return range(hits, hits + blocks_worth_fetching(progress.prefix, most, hits, size, cost))

    def _begin_fetch(self, progress: Progress, indexes: range) -> Reserved:
        full = progress.chain.full
        wanted = [FetchBlock(at, full[at].hash, progress.blocks[at]) for at in indexes]
        self.fetching.begin(progress.key, ((item.index, item.block) for item in wanted))
        return Reserved(progress.key, tuple(wanted))

    def _skip_landed(self, progress: Progress) -> None:
        """Blocks that have landed count as soon as all before them are computed."""
        size = self._limits.block_size
        while progress.computed % size == 0 and (reached := progress.computed // size) in progress.landed:
            self.pool.seal(progress.blocks[reached], progress.chain.full[reached])
            progress.computed += size
            progress.fetched += size
            if progress.request.role is not Role.PREFILL:
                progress.told = reached + 1

    def _announce_full(self, progress: Progress) -> list[Event]:
        return self._announce(progress, progress.computed // self._limits.block_size)

    def _announce(self, progress: Progress, end: int) -> list[Event]:
        """Full blocks before `end` are sealed; pinned for whoever copies them out."""
        first, progress.told = progress.told, max(end, progress.told)
        if first >= end:
            return []
        if progress.request.role in self._copied:
            for block in progress.blocks[first:end]:
                self.pool.pin(block)
        full = progress.chain.full
        sealed = [SealedBlock(at, full[at].hash, progress.blocks[at], full[at].tokens) for at in range(first, end)]
        return [Sealed(progress.key, tuple(sealed))]

    def _lacking(self, row: Progress) -> int:
        return self._limits.blocks_for(row.known) - len(row.blocks)

    def _extend(self, row: Progress, count: int, now: float) -> list[Event]:
        victims = self._giving_way_to(row, lambda gone: self.pool.fits((), count, without=_blocks_of(gone)))
        if victims is None:
            return []
        events = [self._preempt(victim, now) for victim in victims]
        row.blocks.extend(self._take((), count).blocks)
        return events

    def _take(self, prefix: Sequence[FullBlock], count: int) -> Reservation:
        """Room was looked for, or made, just before."""
        reservation = self.pool.reserve(prefix, count)
        if reservation is None:
            raise RuntimeError("the room that was made is gone")
        return reservation

    def _demand(self, progress: Progress) -> tuple[Sequence[FullBlock], int]:
        """What may be hit, and how many blocks the request starts with: for all its known tokens."""
        size = self._limits.block_size
        prefix = progress.handed_blocks(size) if progress.wants_fetch else progress.reusable_blocks(size)
        return prefix, self._limits.blocks_for(progress.known)

    def _may_start(self, prefix: Sequence[FullBlock], count: int, gone: Sequence[Progress]) -> bool:
        """Without `gone`. The watermark is kept for those that run: a request alone may have the whole pool."""
        others = len(self._rows) - len(gone)
        spare = self._limits.watermark_blocks if others else 0
        return others < self._limits.max_running and self.pool.fits(prefix, count, spare, _blocks_of(gone))

    def _giving_way_to(
        self, progress: Progress, suffices: Callable[[Sequence[Progress]], bool]
    ) -> Sequence[Progress] | None:
        """The fewest of the least important behind `progress` that suffice, maybe none; None if all of them do not."""
        behind = [row for row in self._rows if row.rank > progress.rank and self._may_give_way(row)]
        if not suffices(behind):
            return None
        return next(behind[at:] for at in range(len(behind), -1, -1) if suffices(behind[at:]))

    def _may_give_way(self, row: Progress) -> bool:
        """Blocks that transfers fill are of no use to others yet; those of a request that lacks its first token are."""
        return row.state is State.RUNNING or (row.awaits_first and not self.fetching.is_open(row.key))

    def _preempt(self, victim: Progress, now: float) -> Event:
        self.remove(victim)
        victim.preempted()
        self.release(victim)
        victim.state = State.WAITING
        victim.wants_fetch = False
        victim.moved = now
        return Preempted(victim.key)


def _blocks_of(rows: Sequence[Progress]) -> list[BlockId]:
    return list(chain.from_iterable(row.blocks for row in rows))
