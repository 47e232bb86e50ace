"""A store under everything that may happen: two attempts of one request, requests that share a prefix, the cache and
loans beside them, sessions that end with and without their process, copies that return whenever they like, and a store
that starts anew."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.core.errors import KVMissing, Overloaded, StaleHandoff
from services.core.handoff import State
from services.core.ids import RequestId, RequestKey
from services.kvstore.exchange import Offer
from services.kvstore.notices import Wanted
from tests.support.exchange_world import PROMPTS, ExchangeWorld, Task, prompt

requests = st.sampled_from(sorted(PROMPTS))
slots, places, picks = st.integers(0, 3), st.integers(0, 3), st.integers(0, 9)


def is_running(task: Task) -> bool:
    return task.copy.is_running


def is_idle(task: Task) -> bool:
    return not task.copy.is_running


def is_fresh(task: Task) -> bool:
    return task.party.is_near and not task.copy.is_running and not task.copy.is_done


def is_done(task: Task) -> bool:
    return task.party.is_near and task.copy.is_done


def is_far(task: Task) -> bool:
    return not task.party.is_near


class ExchangeMachine(RuleBasedStateMachine):
    """Four processes; 0 and 1 copy into the pages themselves, for 2 and 3 the store does."""

    @initialize(capacity=st.integers(1, 6))
    def build(self, capacity: int) -> None:
        self.world = ExchangeWorld(capacity)
        self.attempts = dict.fromkeys(PROMPTS, 0)
        self.restarts = 0

    # --- hand-overs

    @rule(request=requests)
    def retry(self, request: RequestId) -> None:
        """Beside the attempt before, which may still be alive."""
        self.attempts[request] += 1

    @rule(request=requests, back=st.integers(0, 1), slot=slots)
    def claim(self, request: RequestId, back: int, slot: int) -> None:
        key = self._key(request, back)
        self.world.hear(self.world.exchange.claim(self.world.processes[slot].party, key, 0.0))

    @rule(
        request=requests, back=st.integers(0, 1), slot=slots, start=places, count=st.integers(0, 4), ends=st.booleans()
    )
    def offer(self, request: RequestId, back: int, slot: int, start: int, count: int, ends: bool) -> None:
        key, party = self._key(request, back), self.world.processes[slot].party
        hashes = prompt(key)[start : start + count]
        notices = self.world.exchange.offer(party, Offer(key, start, hashes, ends), 0.0)
        if any(isinstance(notice, Wanted) and notice.refused for notice in notices):
            spoilt = {each for record in self.world.exchange.live() if record.key == key for each in record.bad}
            if not spoilt & set(hashes):
                self.world.check_refusal()
        self.world.hear(notices)

    @rule(request=requests, writer=slots, reader=slots)
    def hand_over(self, request: RequestId, writer: int, reader: int) -> None:
        """As it should be: claimed, offered whole."""
        key = self._key(request, 0)
        self.claim(request, 0, reader)
        self.offer(request, 0, writer, 0, len(prompt(key)), True)

    @precondition(lambda self: any(record.handoff.reader for record in self.world.exchange.live()))
    @rule(pick=picks, lacks=st.sets(places))
    def want(self, pick: int, lacks: set[int]) -> None:
        claimed = [(r.key, r.handoff.reader) for r in self.world.exchange.live() if r.handoff.reader]
        key, party = claimed[pick % len(claimed)]
        hashes = frozenset(prompt(key)[place % len(prompt(key))] for place in lacks)
        if key not in self.world.wanted:
            self.world.wanted[key] = hashes
            told = self.world.told.setdefault((party, key), set())
            told &= hashes
            self.world.hear(self.world.exchange.want(party, key, hashes))

    @precondition(lambda self: any(map(self.world.keys_of, range(4))))
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        """As a rule only when none of its copies for the hand-over runs; copies for the cache may."""
        held = [(slot, key) for slot in range(4) for key in self.world.keys_of(slot)]
        self._release(*held[pick % len(held)])

    @precondition(lambda self: any(record.handoff.state is State.JOINED for record in self.world.exchange.live()))
    @rule(pick=picks)
    def the_reader_leaves_while_blocks_are_written(self, pick: int) -> None:
        joined = [r for r in self.world.exchange.live() if r.handoff.state is State.JOINED]
        record = joined[pick % len(joined)]
        slot = next(n for n, each in enumerate(self.world.processes) if each.party == record.handoff.reader)
        self._release(slot, record.key)

    def _release(self, slot: int, key: RequestKey) -> None:
        process = self.world.processes[slot]
        of_handoff = [task for task in process.current() if task.key == key and not self._is_cache(task)]
        if any(task.copy.is_running for task in of_handoff):
            return
        process.tasks = [task for task in process.tasks if task not in of_handoff]
        self.world.hear(self.world.exchange.release(process.party, key))
        if self.world.reader_of(key) is None:
            self.world.wanted.pop(key, None)

    # --- cache and loans

    @rule(request=requests, slot=slots, start=places, count=st.integers(1, 4))
    def offer_for_the_cache(self, request: RequestId, slot: int, start: int, count: int) -> None:
        key, party = self._key(request, 0), self.world.processes[slot].party
        hashes = prompt(key)[start : start + count]
        self.world.hear(self.world.exchange.offer(party, Offer(key, start, hashes, is_cache=True), 0.0))

    @precondition(lambda self: self.world.exchange.index.sealed())
    @rule(request=requests, slot=slots)
    def borrow(self, request: RequestId, slot: int) -> None:
        key = self._key(request, 0)
        self.world.hear(self.world.exchange.borrow(self.world.processes[slot].party, key, prompt(key)))

    @precondition(lambda self: self.world.lent)
    @rule(pick=picks)
    def give_back(self, pick: int) -> None:
        party, key = list(self.world.lent)[pick % len(self.world.lent)]
        del self.world.lent[party, key]
        self.world.hear(self.world.exchange.give_back(party, key))

    # --- copies

    @precondition(lambda self: self.world.each_task(is_fresh))
    @rule(pick=picks)
    def start_copies(self, pick: int) -> None:
        """All that one process has been granted."""
        chosen, _ = self._one(pick, self.world.each_task(is_fresh))
        for slot, task in self.world.each_task(is_fresh):
            if slot == chosen and task.key not in self.world.processes[slot].closed:
                task.copy.start()

    @precondition(lambda self: self.world.each_task(is_fresh))
    @rule(pick=picks)
    def copy_at_once(self, pick: int) -> None:
        slot, task = self._one(pick, self.world.each_task(is_fresh))
        if task.key not in self.world.processes[slot].closed:
            task.copy.start()
            task.copy.finish()
            self.world.hear(self.world.say_written(slot, task))

    @precondition(lambda self: self.world.arena.running)
    @rule(pick=picks)
    def finish_copy(self, pick: int) -> None:
        """Also one whose process is long taken for lost."""
        running = self.world.arena.running
        running[pick % len(running)].finish()

    @precondition(lambda self: self.world.each_task(is_done))
    @rule(pick=picks)
    def say_written(self, pick: int) -> None:
        slot, task = self._one(pick, self.world.each_task(is_done))
        self.world.hear(self.world.say_written(slot, task))

    @precondition(lambda self: self.world.each_task(is_idle))
    @rule(pick=picks)
    def give_up(self, pick: int) -> None:
        slot, task = self._one(pick, self.world.each_task(is_idle))
        process = self.world.processes[slot]
        process.tasks.remove(task)
        named = [(task.copy.hash, task.copy.grant.generation)]
        self.world.hear(self.world.exchange.given_up(process.party, task.key, named))

    @precondition(lambda self: self.world.each_task(is_far))
    @rule(pick=picks, is_whole=st.booleans())
    def stream(self, pick: int, is_whole: bool) -> None:
        """The store copies what it is sent, part by part, for as long as the page is the writer's."""
        slot, task = self._one(pick, self.world.each_task(is_far))
        exchange, process = self.world.exchange, self.world.processes[slot]
        try:
            block = exchange.begin(task.key, task.party.incarnation, task.copy.hash)
        except (StaleHandoff, Overloaded):
            block = None
        if block is None or block.grant != task.copy.grant:
            return
        task.copy.start()
        if is_whole:
            process.tasks.remove(task)
            task.copy.finish()
            self.world.hear(exchange.seal(block, self.world.arena.checksum(block.grant.page)))
        else:
            task.copy.die()
            process.tasks.remove(task)
            self.world.hear(exchange.give_up(block))
            assert not block.is_in_writing

    @rule(request=requests, back=st.integers(0, 1), place=places, slot=slots)
    def stream_without_a_grant(self, request: RequestId, back: int, place: int, slot: int) -> None:
        key, party = self._key(request, back), self.world.processes[slot].party
        block_hash = prompt(key)[place % len(prompt(key))]
        granted = {task.copy.grant for task in self.world.processes[slot].current()}
        try:
            block = self.world.exchange.begin(key, party.incarnation, block_hash)
        except (StaleHandoff, Overloaded):
            return
        assert block.grant in granted and not party.is_near, "a put that nobody asked for was taken"

    # --- losses

    @precondition(lambda self: not self.world.exchange.is_idle)
    @rule(slot=slots, is_killed=st.booleans())
    def lose(self, slot: int, is_killed: bool) -> None:
        lost = self.world.processes[slot].party
        read = [record.key for record in self.world.exchange.live() if record.handoff.reader == lost]
        for loan in [each for each in self.world.lent if each[0] == lost]:
            del self.world.lent[loan]
        self.world.lose(slot, is_killed=is_killed)
        for key in read:
            self.world.wanted.pop(key, None)

    @precondition(lambda self: self.world.each_task(is_running))
    @rule(pick=picks)
    def the_writer_is_lost_while_it_copies(self, pick: int) -> None:
        slot, _ = self._one(pick, self.world.each_task(is_running))
        self.lose(slot, is_killed=False)

    @precondition(lambda self: self.world.exchange.index.pages.num_quarantined)
    @rule(slot=slots)
    def quiet(self, slot: int) -> None:
        process = self.world.processes[slot]
        if not process.has_copies_of_earlier_sessions():
            process.tasks = process.current()
            self.world.hear(self.world.exchange.quiet(process.party))
            assert process.party.incarnation not in self.world.exchange.index.pages.quarantined()

    @precondition(lambda self: self.world.dead)
    @rule(pick=picks)
    def find_the_lock_free(self, pick: int) -> None:
        self.world.hear(self.world.exchange.quiet(self.world.dead.pop(pick % len(self.world.dead))))

    @precondition(lambda self: self.restarts < 2 and self.world.arena.running)
    @rule()
    def restart_the_store(self) -> None:
        self.restarts += 1
        self.world.restart()

    @precondition(lambda self: self.world.exchange.index.num_pins)
    @rule(pick=picks)
    def rot_and_doubt(self, pick: int) -> None:
        exchange = self.world.exchange
        known = [(r.handoff.reader, r.key, ref) for r in exchange.live() for ref in r.sealed.values()]
        known_loans = [(party, key, item) for (party, key), held in self.world.lent.items() for item in held.items()]
        doubts = [(p, k, ref.hash, ref.grant.generation) for p, k, ref in known if p]
        doubts += [(p, k, block_hash, generation) for p, k, (block_hash, generation) in known_loans]
        for party, key, block_hash, generation in doubts[pick % len(doubts) :][:1] if doubts else []:
            if block := exchange.doubted(party, key, block_hash, generation):
                self.world.arena.rot(block)
                self.world.hear(exchange.found_bad(block))
                assert not exchange.doubted(party, key, block_hash, generation)

    # --- what holds

    @invariant()
    def books_bytes_and_promises_hold(self) -> None:
        self.world.check()
        self.world.check_the_end_was_told_when_all_was_there()

    @invariant()
    def nobody_else_may_read(self) -> None:
        for key in [self._key(request, back) for request in PROMPTS for back in (0, 1)]:
            reader = self.world.reader_of(key)
            for process in self.world.processes:
                if process.party == reader:
                    continue
                try:
                    self.world.exchange.readable(key, process.party.incarnation, prompt(key)[0])
                except (StaleHandoff, KVMissing):
                    continue
                raise AssertionError("a stranger may read")

    def teardown(self) -> None:
        for slot in range(4):
            self.world.lose(slot, is_killed=True)
        self.world.lent.clear()
        for process in self.world.dead:
            self.world.exchange.quiet(process)
        self.world.check()
        index = self.world.exchange.index
        assert self.world.exchange.is_idle
        assert index.num_used == index.num_pins == index.num_lent == 0

    def _one(self, pick: int, tasks: list[tuple[int, Task]]) -> tuple[int, Task]:
        return tasks[pick % len(tasks)]

    def _is_cache(self, task: Task) -> bool:
        block = self.world.exchange.index.lent_at(task.copy.grant.generation)
        return block is not None and block.writer.holder.kind == "cache"

    def _key(self, request: RequestId, back: int) -> RequestKey:
        return RequestKey(request, max(self.attempts[request] - back, 0))


ExchangeMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
TestExchange = ExchangeMachine.TestCase
