"""The index of workers' own caches, against one that keeps whole chains and looks at every block of every worker."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from services.core.ids import BlockHash
from services.scheduler.cached_prefixes import CachedPrefixes

WORKERS = ("a:1", "b:1", "c:1")
CAPACITY = 6
MOST = 12


def block(name: str) -> BlockHash:
    return BlockHash(name.encode().ljust(32, b"."))


def chain(branches: str) -> list[BlockHash]:
    """The chain that takes these turns: chains with one beginning share its blocks."""
    return [block(branches[:length]) for length in range(1, len(branches) + 1)]


chains = st.text("xy", min_size=1, max_size=8)
workers = st.sampled_from(WORKERS)


class CachedPrefixesMachine(RuleBasedStateMachine):
    @initialize()
    def build(self) -> None:
        self.index = CachedPrefixes(MOST)
        self.kept: dict[str, list[BlockHash]] = {worker: [] for worker in WORKERS}
        """Most recent last."""

    @rule(worker=workers, branches=chains)
    def note(self, worker: str, branches: str) -> None:
        hashes = chain(branches)
        self.index.note(worker, hashes, CAPACITY)
        kept = self.kept[worker]
        for each in reversed(hashes[:CAPACITY]):
            if each in kept:
                kept.remove(each)
            kept.append(each)
        while len(kept) > CAPACITY or sum(map(len, self.kept.values())) > MOST:
            kept.pop(0)
            if not kept:
                break

    @rule(worker=workers)
    def forget(self, worker: str) -> None:
        self.index.forget(worker)
        self.kept[worker] = []

    @rule(branches=chains)
    def ask(self, branches: str) -> None:
        hashes = chain(branches)
        expected = {}
        for worker, kept in self.kept.items():
            count = next((place for place, each in enumerate(hashes) if each not in kept), len(hashes))
            if count:
                expected[worker] = count
        found = self.index.longest(hashes)
        assert {worker: count for count, having in found for worker in having} == expected
        assert sum(len(having) for _, having in found) == len(expected), "a worker is named twice"
        assert [count for count, _ in found] == sorted({count for count, _ in found}, reverse=True)

    @invariant()
    def books_balance(self) -> None:
        self.index.check_invariants()


CachedPrefixesMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestCachedPrefixes = CachedPrefixesMachine.TestCase
