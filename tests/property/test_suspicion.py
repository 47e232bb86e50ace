"""Suspects take turns on each worker, nobody waits for longer than the bound, and who gets on is no suspect."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.scheduler.suspicion import CLEARED_TOKENS, Deaths, Trials

SECONDS = 5.0
HOLDERS = st.integers(0, 5)
WORKERS = st.frozensets(st.sampled_from("abc"), min_size=1, max_size=2)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2 * CLEARED_TOKENS)), max_size=20), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_it_is_given_up_at_the_last_of_several_deaths_in_a_row_without_getting_on(
    attempts: list[tuple[bool, int]], most: int
) -> None:
    """Attempts get some tokens further; then their worker dies, or they end in another way and go on elsewhere."""
    deaths, emitted = Deaths(most), 0
    row: list[int] = []
    for dies, tokens in attempts:
        emitted += tokens
        if row and emitted - row[-1] >= CLEARED_TOKENS:
            row = []
        assert deaths.is_suspect(emitted) == bool(row)
        if dies:
            row.append(emitted)
            may_go_on = deaths.died(emitted)
            assert may_go_on == (len(row) < most)
            if not may_go_on:
                return


class TrialsMachine(RuleBasedStateMachine):
    """Against a model that keeps for each holder when it was suspected and where it has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.trials: Trials[int] = Trials(SECONDS)
        self.now = 100.0
        self.since: dict[int, float] = {}
        self.on: dict[int, frozenset[str]] = {}

    @rule(seconds=st.sampled_from([0.5, 2.0, SECONDS]))
    def passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(holder=HOLDERS)
    def suspect(self, holder: int) -> None:
        self.trials.suspected(holder, self.now)
        self.since[holder] = self.now
        self.on.pop(holder, None)

    @rule(holder=HOLDERS, workers=WORKERS)
    def begin(self, holder: int, workers: frozenset[str]) -> None:
        """Only where it is allowed to."""
        if holder in self.on or workers & self.trials.closed_to(holder, self.now):
            return
        has_waited = holder not in self.since or self.now >= self.since[holder] + SECONDS
        if not has_waited:
            assert not any(workers & taken for taken in self.on.values()), "one suspect at a time on a worker"
        self.trials.began(holder, workers)
        if holder in self.since:
            self.on[holder] = workers

    @rule(holder=HOLDERS)
    def over(self, holder: int) -> None:
        self.trials.over(holder)
        self.since.pop(holder, None)
        self.on.pop(holder, None)

    @invariant()
    def those_who_have_waited_and_strangers_may_begin_anywhere(self) -> None:
        for holder in range(6):
            waits = holder in self.since and self.now < self.since[holder] + SECONDS
            taken = frozenset[str]().union(*self.on.values())
            assert self.trials.closed_to(holder, self.now) == (taken if waits else frozenset())
        assert set(self.trials.tried()) == set(self.on)

    @invariant()
    def the_next_end_is_the_first_of_those_that_wait(self) -> None:
        ends = [at + SECONDS for holder, at in self.since.items() if holder not in self.on]
        assert self.trials.next_end(self.now) == min((end for end in ends if end > self.now), default=None)


TestTrials = TrialsMachine.TestCase
TestTrials.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
