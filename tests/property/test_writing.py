"""The writer's end of hand-overs, and of blocks for the cache, under facts in any order, against a model that keeps
what a store has lent, what is being copied and what was told."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.core.batch_events import SealedBlock
from services.core.errors import KVCorrupt, StaleHandoff, WorkerLost
from services.core.ids import BlockHash, BlockId
from services.core.writing import Page, Writing
from services.core.writing_life import COPIES, FINAL, TAKING, Effect, State

HASHES = [BlockHash(f"b{n}".encode()) for n in range(4)]
some = st.lists(st.sampled_from(HASHES), min_size=1, max_size=4, unique=True)


class WritingMachine(RuleBasedStateMachine):
    """One end, and a store that answers each offered block once, and may say later that it is not needed."""

    @initialize(is_cache=st.booleans(), calm=st.integers(0, 15), open_for=st.integers(0, 10))
    def build(self, is_cache: bool, calm: int, open_for: int) -> None:
        self.calm, self.open_for = calm, open_for
        """Steps before anything may be given up or lost, and before it may be finished; else most would end early."""
        self.writing, self.is_cache = Writing(is_cache=is_cache), is_cache
        self.session = "sought"
        self.added: list[SealedBlock] = []
        self.done: Counter[BlockId] = Counter()
        self.offered: set[BlockHash] = set()
        self.unanswered: set[BlockHash] = set()
        self.lent: dict[BlockHash, Page] = {}
        """Pages that the store has lent and heard nothing of."""
        self.copying: dict[BlockId, BlockHash] | None = None
        """Blocks of the batch that may still be read."""
        self.batch: set[BlockHash] = set()
        self.is_stopped = self.is_finished = self.is_aborted = self.is_told = self.was_ended = self.is_left = False
        self.said_complete = False
        self.generation = 0

    def follow(self, effects: tuple[Effect, ...]) -> None:
        for block_hash, page in self.writing.take_given_back():
            assert self.session == "open", "a page is given back where there is no session"
            assert self.copying is None or block_hash not in self.copying.values(), "given back while it is copied"
            self.lent = {each: lent for each, lent in self.lent.items() if lent != page}
        for effect in effects:
            self._do(effect)
        for block in self.writing.take_done():
            assert self.copying is None or block.block not in self.copying, "done while it is copied"
            self.done[block.block] += 1

    def _do(self, effect: Effect) -> None:
        match effect:
            case Effect.OFFER:
                assert self.session == "open" and not self.is_left
                offer = self.writing.take_offer()
                assert not self.said_complete or not (offer.blocks or offer.is_complete), "offered after the end"
                self.said_complete |= offer.is_complete
                hashes = {block.hash for block in offer.blocks}
                assert not hashes & self.offered, "offered twice"
                self.offered |= hashes
                self.unanswered |= hashes
            case Effect.PUT:
                assert self.session == "open" and self.copying is None and not self.is_left
                batch = self.writing.batch()
                assert batch and all(self.lent[block.hash] == page for block, page in batch), (
                    "put where nothing is lent"
                )
                self.copying = {block.block: block.hash for block, _ in batch}
                self.batch = set(self.copying.values())
                self.is_stopped = False
            case Effect.STOP:
                assert self.copying is not None or self.session == "sought"
                self.session = "not sought" if self.session == "sought" else self.session
                self.is_stopped = True
            case Effect.LEAVE:
                assert self.session == "open" and self.copying is None and not self.is_left
                self.is_left = True
                if not self.is_cache:
                    # The release of a hand-over settles all of it.
                    self.unanswered.clear()
                    self.lent.clear()
            case Effect.END:
                assert not self.was_ended and self.copying is None
                self.was_ended = True
            case Effect.REPORT:
                assert self.is_finished and not self.is_aborted and not self.is_told and self.was_ended
                self.is_told = True

    # --- the worker

    @rule(hashes=some)
    def add(self, hashes: list[BlockHash]) -> None:
        blocks = [SealedBlock(0, each, BlockId(len(self.added) + n), ()) for n, each in enumerate(hashes)]
        self.added += blocks
        self.follow(self.writing.add(blocks))

    @precondition(lambda self: self.open_for < 0)
    @rule()
    def finish(self) -> None:
        self.is_finished = True
        self.follow(self.writing.finish())

    @precondition(lambda self: self.calm < 0)
    @rule()
    def abort(self) -> None:
        self.is_aborted = True
        self.follow(self.writing.abort(WorkerLost("aborted")))
        assert self.session != "sought", "still seeks a session"
        assert self.writing.state in FINAL or self.is_stopped, "goes on although it is given up"

    @precondition(lambda self: self.calm < 0 and self.writing.is_impatient)
    @rule()
    def lose_patience(self) -> None:
        assert self.is_cache and self.session == "open" and self.unanswered
        self.follow(self.writing.give_up(WorkerLost("the store does not answer")))
        assert self.writing.state in FINAL

    # --- the session and the store

    @precondition(lambda self: self.session == "sought")
    @rule()
    def open(self) -> None:
        self.session = "open"
        self.follow(self.writing.opened())

    @precondition(lambda self: self.calm < 0 and self.session == "open")
    @rule()
    def lose(self) -> None:
        self.session = "lost"
        self.lent.clear()
        self.unanswered.clear()
        self.follow(self.writing.lost(WorkerLost("lost")))
        assert self.writing.state in FINAL or self.is_stopped, "goes on although its session is lost"

    @precondition(lambda self: self.session == "open" and self.unanswered)
    @rule(answers=st.lists(st.sampled_from(["grant", "grant", "refuse", "not needed"]), min_size=1, max_size=4))
    def answer(self, answers: list[str]) -> None:
        said: dict[str, list[BlockHash]] = {"grant": [], "refuse": [], "not needed": []}
        for block_hash, word in zip(sorted(self.unanswered), answers, strict=False):
            said[word].append(block_hash)
            self.unanswered.remove(block_hash)
        pages = {}
        for block_hash in said["grant"]:
            self.generation += 1
            pages[block_hash] = self.lent[block_hash] = Page(self.generation, 0)
        self.follow(self.writing.answered(pages, said["refuse"], said["not needed"]))

    @precondition(lambda self: self.session == "open" and not self.is_left)
    @rule(hashes=some)
    def not_needed_after_all(self, hashes: list[BlockHash]) -> None:
        """Also what was granted, and what another under the same key has heard."""
        late = [each for each in hashes if each not in self.unanswered]
        self.follow(self.writing.answered({}, not_needed=late))

    @precondition(lambda self: self.calm < 0 and self.session == "open" and not self.is_left)
    @rule()
    def close(self) -> None:
        self.follow(self.writing.give_up(StaleHandoff("closed")))
        assert self.writing.state in FINAL or self.is_stopped, "goes on although it is closed"

    # --- the copies

    @precondition(lambda self: self.copying)
    @rule(is_good=st.booleans())
    def copy_one(self, is_good: bool) -> None:
        assert self.copying
        number, block_hash = self.copying.popitem()
        block = next(each for each in self.added if each.block == number)
        if is_good:
            self.writing.copied(block)
        else:
            self.lent.pop(block_hash, None)
            self.writing.failed(block, KVCorrupt("refused"))
        self.follow(())
        assert self.done[number] == 1

    @precondition(lambda self: self.copying is not None)
    @rule(is_broken=st.booleans())
    def end_copies(self, is_broken: bool) -> None:
        """Also well, although they were to be stopped."""
        self.copying = None
        if not is_broken:
            self.lent = {each: page for each, page in self.lent.items() if each not in self.batch}
        self.follow(self.writing.put_ended(WorkerLost("broken") if is_broken else None))

    # --- what holds

    @invariant()
    def time_passes(self) -> None:
        self.calm, self.open_for = self.calm - 1, self.open_for - 1

    @invariant()
    def nothing_is_left_undone(self) -> None:
        writing = self.writing
        assert (writing.state in COPIES) == (self.copying is not None)
        assert all(count == 1 for count in self.done.values()), "done twice"
        ended = writing.state in FINAL
        assert ended == self.was_ended
        if ended:
            assert set(self.done) == {block.block for block in self.added}, "not done at the end"
            assert self.is_left or self.session != "open", "not left at the end"
            assert self.is_told or self.is_aborted or not self.is_finished, "not told at the end"
            assert not writing.num_unsealed
        if writing.state is State.OVER and self.session == "open":
            assert not self.lent and not self.unanswered, "a page is left"
        if self.session == "open" and writing.state in TAKING:
            assert self.offered == writing.hashes, "the store is not told of all blocks"
        if self.session == "open" and not ended and self.copying is None:
            offered = self.unanswered | (set(self.lent) if not self.is_cache else set())
            assert offered or not self.is_finished, "waits for nothing"

    @invariant()
    def what_has_become_of_each_block_is_counted_once(self) -> None:
        writing = self.writing
        known = writing.num_sealed + writing.num_skipped + writing.num_dropped + len(writing.gaps)
        if self.was_ended:
            assert known == len({block.hash for block in self.added if block.hash in writing.hashes})

    def teardown(self) -> None:
        """However it stands, it ends when it is given up, its copies return and the store answers."""
        if not hasattr(self, "writing"):
            return
        self.abort()
        if self.copying is not None:
            self.end_copies(is_broken=False)
        assert self.writing.state in FINAL
        while self.unanswered and self.session == "open":
            self.answer(["grant", "refuse", "grant"])
        assert self.writing.state is State.OVER
        self.nothing_is_left_undone()


WritingMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=25, deadline=None)
TestWriting = WritingMachine.TestCase
