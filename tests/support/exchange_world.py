"""Processes that write to, read from and borrow from an exchange by the rules, with copies that take as long as they
like. They hear only what they are told on a session that lives."""

from collections.abc import Callable
from dataclasses import dataclass, field
from zlib import crc32

from services.core.errors import StaleHandoff
from services.core.handoff import Party
from services.core.ids import BlockHash, RequestId, RequestKey
from services.kvstore.block_index import BlockIndex
from services.kvstore.exchange import Exchange, Sealing
from services.kvstore.notices import Available, Closed, Lent, Notice, Wanted
from tests.support.page_bytes import Copy, PageBytes

# The two requests share their first two blocks; all attempts at one have the same.
PROMPTS = {
    RequestId("a"): [BlockHash(name) for name in (b"p0", b"p1", b"a2", b"a3")],
    RequestId("b"): [BlockHash(name) for name in (b"p0", b"p1", b"b2")],
}


def prompt(key: RequestKey) -> list[BlockHash]:
    return PROMPTS[key.request_id]


@dataclass(eq=False)
class Task:
    """A block that a process was granted."""

    key: RequestKey
    party: Party
    copy: Copy


@dataclass(eq=False)
class Process:
    """One worker process; its session may end while it lives on."""

    party: Party
    tasks: list[Task] = field(default_factory=list)
    closed: set[RequestKey] = field(default_factory=set)
    """Hand-overs whose end it was told; it begins no copy for them."""

    def current(self) -> list[Task]:
        """Granted on the session it has now."""
        return [task for task in self.tasks if task.party == self.party]

    def has_copies_of_earlier_sessions(self) -> bool:
        return any(task.copy.is_running for task in self.tasks if task.party != self.party)


class ExchangeWorld:
    """A store, four processes, and what each was told. Processes 0 and 1 are near the store."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.count = 0
        self.processes = [Process(self._party(f"process-{slot}", is_near=slot < 2)) for slot in range(4)]
        self.dead: list[Party] = []
        """Of processes that have ended: the session after their last, which was never opened."""
        self.build()

    def build(self) -> None:
        """A store that knows nothing."""
        self.exchange = Exchange(BlockIndex(self.capacity))
        self.arena = PageBytes(self.capacity)
        self.told: dict[tuple[Party, RequestKey], set[BlockHash]] = {}
        self.ended: set[tuple[Party, RequestKey]] = set()
        self.wanted: dict[RequestKey, frozenset[BlockHash]] = {}
        self.lent: dict[tuple[Party, RequestKey], dict[BlockHash, int]] = {}

    def restart(self) -> None:
        """The store is another process: all sessions end and begin anew, its arena is another file."""
        for process in self.processes:
            process.tasks.clear()
            process.closed.clear()
            process.party = self._party(process.party.incarnation, process.party.is_near)
        self.dead.clear()
        self.build()

    def lose(self, slot: int, *, is_killed: bool) -> None:
        """A session ends, because its process was killed or although it lives on."""
        process = self.processes[slot]
        lost = process.party
        if is_killed:
            for task in process.tasks:
                task.copy.die()
            if lost.is_near:
                self.dead.append(self._party(lost.incarnation, is_near=True))
            process.tasks.clear()
        process.closed.clear()
        incarnation = lost.incarnation + "'" if is_killed else lost.incarnation
        process.party = self._party(incarnation, lost.is_near)
        self.hear(self.exchange.lost(lost))

    def hear(self, notices: list[Notice]) -> None:
        for notice in notices:
            process = next((each for each in self.processes if each.party == notice.to), None)
            if process is None:
                continue
            match notice:
                case Wanted():
                    self._wanted(process, notice)
                case Available():
                    self._available(notice)
                case Closed():
                    assert isinstance(notice.error, StaleHandoff)
                    process.closed.add(notice.key)
                case Lent():
                    held = self.lent.setdefault((notice.to, notice.key), {})
                    held |= {ref.hash: ref.grant.generation for ref in notice.blocks}

    def say_written(self, slot: int, task: Task) -> list[Notice]:
        """Of a near process, whose copy has ended."""
        process = self.processes[slot]
        process.tasks.remove(task)
        sealing = Sealing(task.copy.hash, task.copy.grant.generation, crc32(task.copy.content))
        was_lent = self.exchange.index.lent_at(sealing.generation) is not None
        notices = self.exchange.written(process.party, task.key, [sealing])
        refused = [each for notice in notices if isinstance(notice, Wanted) for each in notice.refused]
        assert was_lent, "a living writer's page was taken from it"
        # Told once more, it changes nothing.
        again = self.exchange.written(process.party, task.key, [sealing])
        assert again == [Wanted(process.party, task.key, refused=(task.copy.hash,))]
        assert task.copy.hash not in refused
        return notices

    def check(self) -> None:
        """AssertionError if books, bytes or promises do not hold."""
        self.exchange.check_invariants()
        self.arena.check(self.exchange.index)
        self._check_writers_know()
        for (party, key), hashes in self.told.items():
            if self.reader_of(key) == party and any(each.party == party for each in self.processes):
                for block_hash in hashes:
                    block = self.exchange.readable(key, party.incarnation, block_hash)
                    assert block.is_sealed or block.grant.generation in self.arena.rotten
        for (party, key), held in self.lent.items():
            for block_hash, generation in held.items():
                found = self.exchange.loans.pinned(party, key, block_hash)
                assert generation in self.arena.rotten or (found and found.grant.generation == generation)

    def check_the_end_was_told_when_all_was_there(self) -> None:
        for record in self.exchange.live():
            reader = record.handoff.reader
            if reader and (reader, record.key) in self.ended:
                assert set(record.sealed) == set(record.blocks) == self.told.get((reader, record.key), set())

    def check_refusal(self) -> None:
        """A block of a hand-over was refused: every page is needed by somebody else's hand-over, or out of reach."""
        index = self.exchange.index
        assert not index.has_room, "refused although a page could be had"
        waiting = {(h, r.key) for r in self.exchange.live() for h in r.unsealed()}
        served = {(b.hash, s.holder.key) for b in index.lent() for s in b.waiting if s.holder.kind == "handoff"}
        assert index.num_returning <= len(waiting - served), "refused although a page is coming back"

    def reader_of(self, key: RequestKey) -> Party | None:
        return next((r.handoff.reader for r in self.exchange.live() if r.key == key), None)

    def keys_of(self, slot: int) -> list[RequestKey]:
        """Hand-overs of which this process holds an end, or pages."""
        party = self.processes[slot].party
        ends = [r.key for r in self.exchange.live() if party in (r.handoff.writer, r.handoff.reader)]
        return sorted({*ends, *(task.key for task in self.processes[slot].current())})

    def each_task(self, test: Callable[[Task], bool]) -> list[tuple[int, Task]]:
        """Those granted on sessions that live, with the number of their process."""
        return [(n, task) for n, process in enumerate(self.processes) for task in process.current() if test(task)]

    def _party(self, incarnation: str, is_near: bool) -> Party:
        self.count += 1
        return Party(self.count, incarnation, is_near)

    def _check_writers_know(self) -> None:
        for block in self.exchange.index.lent():
            writer = next((each for each in self.processes if each.party == block.writer.party), None)
            assert writer, "a page is lent to somebody who is gone"
            generations = {task.copy.grant.generation for task in writer.tasks}
            assert block.grant.generation in generations, "a page is lent to somebody who was not told"

    def _wanted(self, process: Process, notice: Wanted) -> None:
        for block_hash, grant in notice.granted:
            content = block_hash + notice.to.incarnation.encode()
            copy = Copy(self.arena, block_hash, grant, content)
            process.tasks.append(Task(notice.key, notice.to, copy))
        assert not {each.hash for each in notice.granted} & {*notice.refused, *notice.not_needed}

    def _available(self, notice: Available) -> None:
        if notice.to != self.reader_of(notice.key):
            return
        told = self.told.setdefault((notice.to, notice.key), set())
        for ref in notice.blocks:
            assert prompt(notice.key)[ref.index] == ref.hash, "a block is told of under a wrong index"
            assert ref.hash in self.wanted.get(notice.key, {ref.hash}), "a block is told of that is not wanted"
            told.add(ref.hash)
        told -= set(notice.never)
        if notice.is_complete:
            self.ended.add((notice.to, notice.key))
