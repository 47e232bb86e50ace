"""The reader's end of hand-overs and loans under facts in any order, against a model that keeps nothing but what was
said, what is being copied and what was told."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.core.batch_events import FetchBlock
from services.core.errors import KVCorrupt, KVMissing, StaleHandoff, WorkerLost
from services.core.ids import BlockHash, BlockId
from services.core.reading import COPIES, FINAL, Effect, Place, Reading

BLOCKS = [FetchBlock(n, BlockHash(f"b{n}".encode()), BlockId(n)) for n in range(4)]
some = st.lists(st.sampled_from(BLOCKS), unique=True)


class ReadingMachine(RuleBasedStateMachine):
    """One end; what it asks for is done late, or never."""

    @initialize(is_loan=st.booleans(), wanted=some, calm=st.integers(0, 15))
    def build(self, is_loan: bool, wanted: list[FetchBlock], calm: int) -> None:
        self.calm = calm
        """Steps before anything may be given up or lost; else most would end early."""
        self.reading, self.is_loan = Reading(), is_loan
        self.session = "sought"
        self.said: list[Effect] = []
        self.copying: list[FetchBlock] | None = None
        self.is_stopped = self.is_wanted = self.is_told = self.is_left = False
        self.lacking: set[FetchBlock] = set()
        """Wanted, and nothing has become of it."""
        if is_loan:
            self._want(wanted)
            self.reading.expect()

    def follow(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case Effect.ASK | Effect.WANT | Effect.LEAVE:
                    assert self.session == "open", "said where there is no session"
                    assert effect not in self.said, "said twice"
                    assert not self.is_left, "said after it has left"
                    assert effect is Effect.ASK or Effect.ASK in self.said, "said before it has asked"
                    assert effect is not Effect.LEAVE or self.copying is None, "left while a copy runs"
                    self.said.append(effect)
                    self.is_left = effect is Effect.LEAVE
                case Effect.GET:
                    assert self.session == "open" and self.copying is None and not self.is_left
                    self.copying = [block for block, _ in self.reading.batch()]
                    assert self.copying and set(self.copying) <= self.lacking
                    self.is_stopped = False
                case Effect.STOP:
                    assert self.copying is not None or self.session == "sought"
                    if self.session == "sought":
                        self.session = "not sought"
                    self.is_stopped = True
                case Effect.REPORT:
                    assert self.is_wanted and not self.is_told, "told twice, or unasked"
                    assert self.copying is None, "told while a copy runs"
                    self.is_told = True

    # --- the worker

    def _want(self, blocks: list[FetchBlock]) -> None:
        self.lacking, self.is_wanted = set(blocks), True
        self.follow(self.reading.want(blocks, 0.0))

    @precondition(lambda self: not self.is_wanted)
    @rule(blocks=some)
    def want(self, blocks: list[FetchBlock]) -> None:
        self._want(blocks)

    @rule()
    def want_again(self) -> None:
        if self.is_wanted:
            assert self.reading.want(BLOCKS, 0.0) == ()

    @rule()
    def expect(self) -> None:
        self.reading.expect()

    @precondition(lambda self: self.calm < 0)
    @rule()
    def release(self) -> None:
        self.follow(self.reading.give_up(WorkerLost("released")))
        assert self.session != "sought", "still seeks a session"
        assert self.reading.state in FINAL or self.is_stopped, "goes on although it is given up"

    @precondition(lambda self: self.calm < 0 and self.reading.is_impatient)
    @rule()
    def lose_patience(self) -> None:
        assert self.session == "open"
        self.follow(self.reading.give_up(KVMissing("nobody has spoken")))
        assert self.reading.state in FINAL

    # --- the session and the store

    @precondition(lambda self: self.session == "sought")
    @rule()
    def open(self) -> None:
        self.session = "open"
        self.follow(self.reading.opened())

    @precondition(lambda self: self.calm < 0 and self.session == "open")
    @rule()
    def lose(self) -> None:
        self.session = "lost"
        self.follow(self.reading.lost(WorkerLost("lost")))
        assert self.reading.state in FINAL or self.is_stopped, "goes on although its session is lost"

    @precondition(lambda self: self.session == "open" and not self.is_left and not self.is_loan)
    @rule(there=some, never=some, is_complete=st.booleans())
    def hear(self, there: list[FetchBlock], never: list[FetchBlock], is_complete: bool) -> None:
        places = {block.hash: Place(block.index, -1, 0) for block in there if block not in never}
        effects = self.reading.available(places, [block.hash for block in never], is_complete, 1.0)
        self._note_never()
        self.follow(effects)

    @precondition(lambda self: self.session == "open" and not self.is_left and self.is_loan)
    @rule(count=st.integers(0, 4))
    def lend(self, count: int) -> None:
        lent = [block for block in BLOCKS if block in self.lacking][:count]
        if Effect.GET not in self.said and self.copying is None:
            self.lacking = set(lent)
        effects = self.reading.lent({block.hash: Place(0, -1, 0) for block in lent}, 1.0)
        self.follow(effects)

    @precondition(lambda self: self.calm < 0 and self.session == "open" and not self.is_left)
    @rule()
    def close(self) -> None:
        self.follow(self.reading.give_up(StaleHandoff("closed")))

    # --- the copies

    @precondition(lambda self: self.copying)
    @rule(is_good=st.booleans())
    def copy_one(self, is_good: bool) -> None:
        assert self.copying
        block = self.copying.pop(0)
        self.lacking.discard(block)
        before = self.reading.landed
        if is_good:
            self.reading.block_landed(block)
        else:
            self.reading.block_failed(block, KVCorrupt("bad"))
        assert self.reading.landed == before + is_good

    @precondition(lambda self: self.copying is not None)
    @rule(is_broken=st.booleans())
    def end_copies(self, is_broken: bool) -> None:
        """Also well, although they were to be stopped, or with nothing told of some blocks: these must not be asked for
        for ever."""
        assert self.copying is not None
        left, self.copying = self.copying, None
        if not is_broken:
            self.lacking -= set(left)
        effects = self.reading.copied(WorkerLost("broken") if is_broken else None)
        self._note_never()
        self.follow(effects)

    # --- what holds

    def _note_never(self) -> None:
        self.lacking &= {block for block in self.lacking if block.hash in self.reading.missing}

    @invariant()
    def time_passes(self) -> None:
        self.calm -= 1

    @invariant()
    def nothing_is_left_undone(self) -> None:
        reading = self.reading
        assert (reading.state in COPIES) == (self.copying is not None)
        if reading.state in FINAL:
            assert self.is_told == self.is_wanted, "not told at the end"
            assert self.is_left or self.session != "open", "not left at the end"
        if self.is_wanted and self.session == "open" and reading.state not in FINAL:
            assert Effect.WANT in self.said, "the store does not know what is wanted"
        if self.is_wanted and self.session == "open" and not self.lacking and self.copying is None:
            assert reading.state in FINAL, "waits for nothing"
        if self.is_told and not reading.error:
            assert not reading.missing

    def teardown(self) -> None:
        """However it stands, it ends when it is given up and its copies return."""
        if not hasattr(self, "reading"):
            return
        self.release()
        if self.copying is not None:
            self.end_copies(is_broken=False)
        assert self.reading.state in FINAL
        self.nothing_is_left_undone()
        if not self.is_wanted:
            self._want(BLOCKS)
        assert self.is_told


ReadingMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=25, deadline=None)
TestReading = ReadingMachine.TestCase
