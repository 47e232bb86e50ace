"""Pages by number, each with who may write it. Knows neither blocks nor bytes.

    FREE ──lend──▶ LENT ──keep──▶ KEPT ──free──▶ FREE
                    │ free: its writer says that no copy runs          (also from LENT)
                    └─quarantine──▶ QUARANTINED ──quiet──▶ FREE

Every loan of a page has a generation of its own, so that a late word about an earlier one is recognized. A generation
cannot stop a late copy: a page whose writer may still be copying is lent to nobody until it is known that none of that
writer's copies runs.
"""

from enum import Enum
from typing import NamedTuple

from services.core.handoff import Party


class PageState(Enum):
    FREE = "free"
    LENT = "lent"
    """One writer may copy into it."""
    KEPT = "kept"
    """Nobody writes it."""
    QUARANTINED = "quarantined"
    """A writer that was lost may still copy into it."""


class Grant(NamedTuple):
    """One loan of a page."""

    page: int
    generation: int
    """Never used again by this store."""


class Pages:
    """`count` pages, addressed 0..count-1. A wrong verb for a page's state is an AssertionError."""

    def __init__(self, count: int) -> None:
        self._states = [PageState.FREE] * count
        self._generations = [0] * count
        self._free = list(range(count - 1, -1, -1))
        self._quarantined: dict[int, Party] = {}
        self._generation = 0

    @property
    def count(self) -> int:
        return len(self._states)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_quarantined(self) -> int:
        return len(self._quarantined)

    def state(self, page: int) -> PageState:
        return self._states[page]

    def generation(self, page: int) -> int:
        """Of its latest loan; 0 if it was never lent."""
        return self._generations[page]

    def lend(self) -> Grant | None:
        """A free page for a writer; None if there is none."""
        if not self._free:
            return None
        page = self._free.pop()
        self._generation += 1
        self._states[page] = PageState.LENT
        self._generations[page] = self._generation
        return Grant(page, self._generation)

    def keep(self, grant: Grant) -> None:
        """Its writer is done: the page is written no more."""
        self._expect(grant, PageState.LENT)
        self._states[grant.page] = PageState.KEPT

    def free(self, grant: Grant) -> None:
        """Nobody writes or reads it."""
        self._expect(grant, PageState.LENT, PageState.KEPT)
        self._release(grant.page)

    def quarantine(self, grant: Grant, writer: Party) -> None:
        """Its writer was lost, and may be copying."""
        self._expect(grant, PageState.LENT)
        self._states[grant.page] = PageState.QUARANTINED
        self._quarantined[grant.page] = writer

    def quiet(self, party: Party) -> int:
        """No copy runs that the process of `party` has begun on an earlier session. Returns pages freed."""
        pages = [
            page
            for page, writer in self._quarantined.items()
            if writer.incarnation == party.incarnation and writer.number < party.number
        ]
        for page in pages:
            del self._quarantined[page]
            self._release(page)
        return len(pages)

    def quarantined(self) -> dict[str, int]:
        """Pages in quarantine by the process that may be writing them."""
        counts: dict[str, int] = {}
        for writer in self._quarantined.values():
            counts[writer.incarnation] = counts.get(writer.incarnation, 0) + 1
        return counts

    def check_invariants(self) -> None:
        """AssertionError if the books do not balance."""
        by_state = {state: {p for p, each in enumerate(self._states) if each is state} for state in PageState}
        assert sorted(self._free) == sorted(by_state[PageState.FREE]), "a free page is lost or listed twice"
        assert set(self._quarantined) == by_state[PageState.QUARANTINED], "a quarantined page has no writer"

    # --- private

    def _expect(self, grant: Grant, *states: PageState) -> None:
        assert self._generations[grant.page] == grant.generation, "an earlier loan of the page is meant"
        assert self._states[grant.page] in states, "the page is not in a state for this"

    def _release(self, page: int) -> None:
        self._states[page] = PageState.FREE
        self._free.append(page)
