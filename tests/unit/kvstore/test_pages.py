"""Pages: who may write which, and when one may be lent again."""

import pytest

from services.core.handoff import Party
from services.kvstore.pages import Grant, Pages, PageState

WRITER, LATER = Party(3, "w", True), Party(5, "w", True)


def lent(pages: Pages) -> Grant:
    grant = pages.lend()
    assert grant
    return grant


def test_every_loan_of_a_page_has_its_own_generation() -> None:
    pages = Pages(1)
    first = lent(pages)
    assert pages.lend() is None
    pages.free(first)
    second = lent(pages)
    assert first.page == second.page and second.generation > first.generation
    with pytest.raises(AssertionError, match="earlier loan"):
        pages.keep(first)


def test_a_kept_page_is_lent_again_only_after_it_is_freed() -> None:
    pages = Pages(1)
    grant = lent(pages)
    pages.keep(grant)
    with pytest.raises(AssertionError, match="state"):
        pages.quarantine(grant, WRITER)
    assert pages.lend() is None
    pages.free(grant)
    assert pages.state(0) is PageState.FREE and pages.num_free == 1


def test_quarantine_ends_when_that_session_of_that_process_is_known_to_copy_no_more() -> None:
    pages = Pages(3)
    pages.quarantine(lent(pages), WRITER)
    pages.quarantine(lent(pages), LATER)
    assert pages.quiet(WRITER) == pages.quiet(Party(9, "other", True)) == 0
    with pytest.raises(AssertionError, match="state"):
        pages.free(Grant(0, pages.generation(0)))
    assert (pages.num_quarantined, pages.quarantined()) == (2, {"w": 2})
    assert pages.quiet(LATER) == 1
    assert (pages.num_quarantined, pages.num_free) == (1, 2)
    assert pages.quiet(Party(9, "w")) == 1
    pages.check_invariants()
