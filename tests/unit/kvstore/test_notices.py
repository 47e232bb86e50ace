"""Fewer notices with the same news."""

from hypothesis import given
from hypothesis import strategies as st

from services.core.errors import StaleHandoff
from services.core.handoff import Party
from services.core.ids import BlockHash, RequestId, RequestKey
from services.kvstore.notices import Available, BlockRef, Closed, Notice, Wanted, gathered
from services.kvstore.pages import Grant

PARTIES = [Party(1, "one"), Party(2, "two")]
KEYS = [RequestKey(RequestId(name), 0) for name in "ab"]
HASHES = st.binary(min_size=1, max_size=2).map(BlockHash)
REFS = st.builds(BlockRef, st.just(0), HASHES, st.just(Grant(0, 1)), st.integers(0, 9))
NOTICES = st.one_of(
    st.builds(
        Available,
        st.sampled_from(PARTIES),
        st.sampled_from(KEYS),
        st.lists(REFS, max_size=2).map(tuple),
        st.booleans(),
        st.lists(HASHES, max_size=2).map(tuple),
    ),
    st.builds(
        Wanted, st.sampled_from(PARTIES), st.sampled_from(KEYS), st.just(()), st.lists(HASHES, max_size=2).map(tuple)
    ),
    st.builds(Closed, st.sampled_from(PARTIES), st.sampled_from(KEYS), st.just(StaleHandoff("over"))),
)


def news(notices: list[Notice], to: Party, key: RequestKey) -> list[object]:
    """What a listener has learned, one thing after the other; what comes in one notice has no order."""
    learned: list[object] = []
    available: tuple[list[BlockRef], list[bytes], bool] = ([], [], False)
    for notice in [*(each for each in notices if (each.to, each.key) == (to, key)), None]:
        if isinstance(notice, Available):
            blocks, never, is_complete = available
            available = blocks + list(notice.blocks), never + list(notice.never), is_complete or notice.is_complete
        else:
            learned += [available, notice]
            available = ([], [], False)
    return learned


@given(st.lists(NOTICES, max_size=12))
def test_each_listener_learns_the_same_in_the_same_order(notices: list[Notice]) -> None:
    fewer = gathered(notices)
    assert len(fewer) <= len(notices)
    for party in PARTIES:
        for key in KEYS:
            assert news(fewer, party, key) == news(notices, party, key)


@given(st.lists(NOTICES, max_size=12))
def test_nobody_hears_twice_in_a_row_what_could_be_said_at_once(notices: list[Notice]) -> None:
    latest: dict[tuple[Party, RequestKey], Notice] = {}
    for notice in gathered(notices):
        before = latest.get((notice.to, notice.key))
        assert not (isinstance(before, Available) and isinstance(notice, Available))
        latest[notice.to, notice.key] = notice
