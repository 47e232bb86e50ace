"""The requests that hold blocks on one worker, and every change of what they hold: start, fetch, grow, preempt, leave.

Owns the block pool and the pins of transfers. Must not know the queue, nor when steps happen; it never takes a block
from a request unasked except in `make_room`.
"""

from bisect import insort
from collections import Counter

from services.core.batch_events import Event, FetchBlock, Reserved, Sealed, SealedBlock, Started
from services.core.batch_limits import BatchLimits
from services.core.block_pool import BlockPool
from services.core.fetching import Fetching
from services.core.ids import BlockId
from services.core.progress import Progress, State
from services.core.request import Role


class Running:
    """Ordered by rank, the most important first."""

    def __init__(self, limits: BatchLimits) -> None:
        self.pool = BlockPool(limits.num_blocks)
        self.fetching = Fetching(self.pool)
        self._limits = limits
        self._rows: list[Progress] = []

    def __len__(self) -> int:
        return len(self._rows)

    def computable(self) -> list[Progress]:
        """Rows whose blocks cover all their known tokens; the others wait for a transfer or for room."""
        return [row for row in self._rows if row.state is State.RUNNING and not self._lacking(row)]

    def start(self, progress: Progress, now: float) -> list[Event]:
        """Give a waiting request its blocks, all or none; no event and no change if there is no room.

        The watermark is kept only from those already running: a request alone may have the whole pool.
        """
        size = self._limits.block_size
        prefix = progress.handed_blocks(size) if progress.wants_fetch else progress.reusable_blocks(size)
        count = len(prefix) if progress.wants_fetch else self._limits.blocks_for(progress.known)
        reservation = self.pool.reserve(prefix, count, self._limits.watermark_blocks if self._rows else 0)
        if reservation is None:
            return []
        progress.blocks = list(reservation.blocks)
        progress.computed = reservation.hits * size
        progress.state = State.FETCHING
        progress.moved = now
        insort(self._rows, progress, key=lambda row: row.rank)
        events: list[Event] = [Started(progress.key, progress.computed)]
        if progress.wants_fetch:
            events.append(self._begin_fetch(progress, reservation.hits))
        elif progress.request.role is Role.PREFILL:
            events += self._announce(progress, 0, reservation.hits)
        self.settle(progress)
        return events

    def land(self, progress: Progress, index: int) -> None:
        """A block was filled: it counts, and is sealed, once all before it are."""
        progress.landed.add(index)
        while (reached := progress.computed // self._limits.block_size) in progress.landed:
            self.pool.seal(progress.blocks[reached], progress.chain.full[reached])
            progress.computed += self._limits.block_size

    def settle(self, progress: Progress) -> None:
        """Compute from now on, if nothing is awaited any more and the first token did not end the answer."""
        is_awaiting = progress.awaits_first or self.fetching.is_open(progress.key)
        if progress.state is not State.FETCHING or is_awaiting:
            return
        if self._limits.ending(progress.request, progress.answered, progress.chain.tokens[-1]) is None:
            progress.state = State.RUNNING

    def make_room(self, now: float) -> list[Progress]:
        """Blocks for every running request's known tokens, at the cost of less important ones; returns those preempted.

        A request that finds none less important waits, keeping what it has. Those still fetching are left alone: their
        blocks are being filled, so taking them would free nothing yet.
        """
        preempted: list[Progress] = []
        for row in tuple(self._rows):
            while row.state is State.RUNNING and (lacking := self._lacking(row)):
                fresh = self.pool.allocate(lacking)
                if fresh is not None:
                    row.blocks.extend(fresh)
                    break
                victim = self._least_important_below(row)
                if victim is None:
                    break
                self._preempt(victim, now)
                preempted.append(victim)
        return preempted

    def advance(self, progress: Progress, tokens: int) -> list[Event]:
        """`tokens` more positions are computed; the blocks that became full are sealed."""
        before = progress.computed // self._limits.block_size
        progress.computed += tokens
        after = progress.computed // self._limits.block_size
        for index in range(before, after):
            self.pool.seal(progress.blocks[index], progress.chain.full[index])
        return self._announce(progress, before, after)

    def remove(self, progress: Progress) -> None:
        """It takes no further part; its blocks are still held until `release`."""
        self._rows.remove(progress)

    def release(self, progress: Progress) -> None:
        """Its blocks are let go; those sealed stay cached, those pinned stay used."""
        self.pool.release(progress.blocks)
        progress.blocks = []
        progress.computed = 0

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

    def _begin_fetch(self, progress: Progress, hits: int) -> Reserved:
        handed = progress.handed_blocks(self._limits.block_size)
        wanted = [FetchBlock(at, handed[at].hash, progress.blocks[at]) for at in range(hits, len(handed))]
        self.fetching.begin(progress.key, ((item.index, item.block) for item in wanted))
        return Reserved(progress.key, tuple(wanted))

    def _announce(self, progress: Progress, first: int, end: int) -> list[Event]:
        """Full blocks `first`..`end`-1 are sealed; for PREFILL, pinned for whoever copies them out."""
        if first == end:
            return []
        if progress.request.role is Role.PREFILL:
            for block in progress.blocks[first:end]:
                self.pool.pin(block)
        full = progress.chain.full
        sealed = [SealedBlock(at, full[at].hash, progress.blocks[at], full[at].tokens) for at in range(first, end)]
        return [Sealed(progress.key, tuple(sealed))]

    def _lacking(self, row: Progress) -> int:
        return self._limits.blocks_for(row.known) - len(row.blocks)

    def _least_important_below(self, row: Progress) -> Progress | None:
        """The least important running request below `row`."""
        below = (other for other in reversed(self._rows) if other.state is State.RUNNING and other.rank > row.rank)
        return next(below, None)

    def _preempt(self, victim: Progress, now: float) -> None:
        self.remove(victim)
        self.release(victim)
        victim.state = State.WAITING
        victim.wants_fetch = False
        victim.moved = now
