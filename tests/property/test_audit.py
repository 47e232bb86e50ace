"""The audit under any interleaving: looks at processes one after the other, while requests come, go and are retried.

Everything that a process holds is a span of time. What is alive obeys one law: a thing begins while something that
must know of it is held, and ends at most `LAG` after the last that knows of it. Times are whole milliseconds.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from services.core.audit import Held, Snapshot, stranded

LAG = 900
"""Longest way of a message, with what its receiver takes to act on it."""
GRACE = 1000
SPREAD = 400
"""Longest that one look takes."""
END = 8_000
FOREVER = END * 10

GATEWAYS, SCHEDULERS = ("gateway-0",), ("scheduler-0", "scheduler-1")
PREFILLS, DECODES, STORES = ("prefill-0", "prefill-1"), ("decode-0", "decode-1"), ("kvstore-0", "kvstore-1")
PROCESSES = (*GATEWAYS, *SCHEDULERS, *PREFILLS, *DECODES, *STORES)
OF_KV = {"kvstore": {"pins", "granted"}, "prefill": {"request"}, "decode": {"request"}}

worlds = st.integers(0, 2**64).map(lambda seed: World(random.Random(seed)))
many = settings(max_examples=400)


@dataclass(frozen=True)
class Span:
    """One thing, held by a process from `begin` until `end`."""

    process: str
    kind: str
    request_id: str
    attempt: int
    begin: int
    end: int
    count: int = 1

    def at(self, now: int) -> bool:
        return self.begin <= now < self.end


class World:
    """Some requests, all that is held for them, and how they are looked at."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.spans = [span for number in range(rng.randint(1, 4)) for span in self._request(f"r{number}")]

    @property
    def over(self) -> int:
        """From then on nothing is held."""
        return max(span.end for span in self.spans)

    def within(self, first: int, last: int) -> int:
        """The ends are as likely as all between them: that is where looks go wrong."""
        return self.rng.choice((first, last, self.rng.randint(first, last)))

    def looks(self, spans: Sequence[Span], begin: int, least: int = GRACE) -> tuple[list[Snapshot], list[Snapshot]]:
        """Two, with at least so much time between them."""
        wait = self.within(least, 3 * GRACE)
        return self._look(spans, begin), self._look(spans, begin + SPREAD + wait)

    def _look(self, spans: Sequence[Span], begin: int) -> list[Snapshot]:
        """Every process is asked at a time of its own, answers at another, and says what it holds at one between."""
        return [self._snapshot(process, spans, begin) for process in PROCESSES]

    def _snapshot(self, process: str, spans: Sequence[Span], begin: int) -> Snapshot:
        asked, said, heard = sorted(self.within(begin, begin + SPREAD) for _ in range(3))
        service = process.partition("-")[0]
        mine = [span for span in spans if span.process == process and span.at(said)]
        held = tuple(Held(s.kind, s.request_id, s.attempt, said - s.begin, s.count) for s in mine)
        total = sum(span.count for span in mine if span.kind in OF_KV.get(service, ()))
        # Blocks that are shared are used once and held by several.
        return Snapshot(service, process, asked, heard, "life", held, blocks_used=self.within(0, total))

    def _request(self, request_id: str) -> list[Span]:
        begin = self.rng.randrange(END)
        asked = Span(self.rng.choice(GATEWAYS), "request", request_id, 0, begin, self.within(begin, END))
        spans, since = [asked], begin
        for number in range(self.rng.randint(1, 3)):
            start = self.within(since, max(since, asked.end))
            end = self.within(start, max(start, asked.end + LAG))
            story = Span(self.rng.choice(SCHEDULERS), "story", f"{request_id}.1", number, start, end)
            spans += [story, *self._attempt(story)]
            since = min(end, asked.end)
        return spans

    def _attempt(self, story: Span) -> list[Span]:
        """All below a story: works, their blocks and transfers, and what a store holds for these."""
        spans: list[Span] = []
        store = self.rng.choice(STORES)
        for workers, transfer in ((PREFILLS, "publication"), (DECODES, "fetch")):
            worker = self.rng.choice(workers)
            work = self._below(story, worker, "work")
            moved = self._below(work, worker, transfer)
            spans += [work, moved, self._below(work, worker, "request")]
            spans += [self._below(moved, store, kind) for kind in ("handoff", "pins", "awaited", "granted")]
        return spans

    def _below(self, knower: Span, process: str, kind: str) -> Span:
        """Begins while its knower is held, and ends at most a lag after it."""
        begin = self.within(knower.begin, knower.end)
        end = self.within(begin, knower.end + LAG)
        return replace(knower, process=process, kind=kind, begin=begin, end=end, count=self.rng.randint(1, 5))


def names(looks: tuple[list[Snapshot], list[Snapshot]]) -> list[tuple[str, str, str, int]]:
    found = stranded(*looks, GRACE)
    return [(one.name, one.held.kind, one.held.request_id, one.held.attempt) for one in found]


@many
@given(world=worlds, begin=st.integers(0, END))
def test_what_is_alive_or_on_its_way_is_never_stranded(world: World, begin: int) -> None:
    assert names(world.looks(world.spans, begin, least=0)) == []


@many
@given(world=worlds)
def test_whatever_stays_when_all_that_know_of_it_are_gone_is_found(world: World) -> None:
    stuck = world.rng.choice([span for span in world.spans if span.process not in GATEWAYS])
    looks = world.looks([*world.spans, replace(stuck, end=FOREVER)], world.over + SPREAD)
    assert names(looks) == [(stuck.process, stuck.kind, stuck.request_id, stuck.attempt)]


@many
@given(world=worlds)
def test_work_of_a_past_attempt_is_found_while_its_request_goes_on(world: World) -> None:
    stuck = world.rng.choice([span for span in world.spans if span.kind == "work"])
    asked = Span("gateway-0", "request", stuck.request_id.partition(".")[0], 0, 0, FOREVER)
    next_story = Span("scheduler-0", "story", stuck.request_id, stuck.attempt + 1, world.over, FOREVER)
    next_work = replace(next_story, process=stuck.process, kind="work")
    spans = [*world.spans, replace(stuck, end=FOREVER), asked, next_story, next_work]
    looks = world.looks(spans, world.over + SPREAD)
    assert names(looks) == [(stuck.process, "work", stuck.request_id, stuck.attempt)]


@many
@given(world=worlds, lost=st.integers(1, 9))
def test_blocks_that_are_used_for_nobody_are_found(world: World, lost: int) -> None:
    before, after = world.looks(world.spans, world.over)
    leaking = tuple(
        [replace(each, blocks_used=lost) if each.name == "decode-1" else each for each in look]
        for look in (before, after)
    )
    assert [(one.name, one.held.kind, one.held.count) for one in stranded(*leaking, GRACE)] == [
        ("decode-1", "blocks", lost)
    ]


@many
@given(world=worlds, begin=st.integers(0, END), asleep=st.sampled_from(PROCESSES))
def test_nothing_alive_is_stranded_because_a_process_does_not_answer(world: World, begin: int, asleep: str) -> None:
    looks = tuple(
        [replace(each, held=(), blocks_used=0, is_silent=True) if each.name == asleep else each for each in look]
        for look in world.looks(world.spans, begin)
    )
    assert names(looks) == []
