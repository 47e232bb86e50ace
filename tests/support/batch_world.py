"""A worker around the batcher, in small: transfers, publisher, scheduler and an engine that reads back its blocks.

Every step is checked as it is taken; `finish` checks the whole.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from services.core.batch_events import (
    Emitted,
    Event,
    Failed,
    FetchBlock,
    Finished,
    Preempted,
    Reserved,
    Sealed,
    SealedBlock,
)
from services.core.batch_limits import BatchLimits
from services.core.batcher import Batcher
from services.core.blocks import hashes, root
from services.core.errors import DeadlinePassed, InternalError, NeverFits, Overloaded
from services.core.ids import RequestId, RequestKey
from services.core.plan import StepPlan
from services.core.prefix_fetch import NOTHING_KNOWN, KnownPrefix
from services.core.request import FinishReason, Request, Role
from tests.support.batch_checks import Story, check_admission, check_order, check_plan
from tests.support.cell_engine import CellEngine, expected_answer

FINGERPRINT = b"weights"
STEP_SECONDS = 0.25


class BatchWorld:
    """Every verb is legal at any time; `pick` chooses among what there is."""

    def __init__(self, limits: BatchLimits, copied: frozenset[Role] = frozenset(Role)) -> None:
        self.limits = limits
        self.copied = copied
        self.batcher = Batcher(limits, FINGERPRINT, copied)
        self.engine = CellEngine(limits)
        self.stories: dict[RequestKey, Story] = {}
        self.fetches: list[tuple[RequestKey, FetchBlock]] = []
        self.copies: list[SealedBlock] = []
        self.step: StepPlan | None = None
        self.now = 0.0
        self.seen: Counter[type[Event]] = Counter()

    # --- requests

    def add(self, request: Request, emitted: int, patience: float | None, prefix: KnownPrefix = NOTHING_KNOWN) -> None:
        """A resumed request continues its own answer after `emitted` tokens; a refused one changes nothing."""
        answer, _ = expected_answer(request)
        request = replace(
            request,
            key=RequestKey(RequestId(f"r{len(self.stories)}")),
            emitted=answer[: min(emitted, len(answer) - 1)],
            deadline=None if patience is None else self.now + patience,
        )
        before = (self.batcher.num_waiting, self.batcher.holdings(self.now))
        can_fit = self.positions_of(request) <= self.limits.num_blocks * self.limits.block_size
        try:
            self.batcher.add(request, self.now, prefix)
        except (Overloaded, NeverFits) as refusal:
            assert before == (self.batcher.num_waiting, self.batcher.holdings(self.now))
            assert isinstance(refusal, NeverFits) != can_fit
            assert isinstance(refusal, NeverFits) or self.batcher.num_waiting >= self.limits.max_waiting
            return
        assert can_fit, "a request that never fits is taken"
        rank = (self.now - request.priority * self.limits.head_start, len(self.stories))
        story = Story(
            request, rank, list(request.emitted), awaits_first=request.role is Role.DECODE, known_blocks=prefix.blocks
        )
        self.stories[request.key] = story

    def positions_of(self, request: Request) -> int:
        """Most positions that have to be cached at a time."""
        if request.role is Role.PREFILL:
            return len(request.tokens)
        whole = min(len(request.prompt) + request.stopping.max_tokens, self.limits.max_context)
        return whole if request.role is Role.DECODE else whole - 1

    def cancel(self, pick: int) -> None:
        story = self.picked_story(pick)
        assert self.batcher.cancel(story.request.key) == (story.ending is None)
        story.ending = story.ending or "cancelled"
        assert not self.batcher.cancel(story.request.key)

    def picked_story(self, pick: int) -> Story:
        """The live ones first, so that a small pick is one that matters."""
        stories = sorted(self.stories.values(), key=lambda story: story.ending is not None)
        return stories[pick % len(stories)]

    # --- steps

    def plan(self) -> None:
        self.now += STEP_SECONDS
        before = self.batcher.holdings(self.now)
        events = self.batcher.admit(self.now)
        self.tell(events)
        after = self.batcher.holdings(self.now)
        check_admission(self.stories, before, events, after)
        if after and not self.fetches and not self.copies:
            check_order(self.stories, self.limits, after)
        self.step = self.batcher.plan(self.now)
        check_plan(self.stories, self.limits, self.step, after)

    def apply(self, broken: int | None = None) -> None:
        """`broken` picks a request whose logits go wrong."""
        assert self.step is not None
        chunks = self.step.chunks
        failed = frozenset[RequestKey]() if broken is None else frozenset({chunks[broken % len(chunks)].key})
        result = self.engine.execute(self.step, failed)
        self.step = None
        self.tell(self.batcher.apply(result, self.now))
        for chunk in chunks:
            self.stories[chunk.key].computed = chunk.start + len(chunk.tokens)

    def work(self) -> None:
        """To the end of this step, and into the next."""
        if self.step is not None:
            self.apply()
        self.plan()

    # --- transfers and the scheduler

    def land(self, pick: int) -> None:
        """A late copy writes too: nobody else may have the block by then."""
        key, wanted = self.fetches.pop(pick % len(self.fetches))
        size = self.limits.block_size
        story = self.stories[key]
        tokens = story.known[wanted.index * size : (wanted.index + 1) * size]
        story.landed.add(wanted.index)
        self.engine.cells[wanted.block] = list(tokens)
        self.batcher.landed(key, wanted.index)
        self.batcher.landed(key, wanted.index)

    def lose(self, pick: int) -> None:
        _, wanted = self.fetches.pop(pick % len(self.fetches))
        self.batcher.unpin(wanted.block)

    def no_more(self, pick: int) -> None:
        key = self.picked_story(pick).request.key
        self.fetches = [(other, wanted) for other, wanted in self.fetches if other != key]
        self.batcher.no_more(key)

    def awaiting_first(self) -> list[Story]:
        return [story for story in self.stories.values() if story.awaits_first]

    def first_token(self, pick: int) -> None:
        awaiting = self.awaiting_first()
        story = awaiting[pick % len(awaiting)]
        answer, _ = expected_answer(story.request)
        token = answer[len(story.request.emitted)]
        story.awaits_first = False
        if story.ending is None:
            story.emitted.append(token)
        self.batcher.first_token(story.request.key, token)
        self.batcher.first_token(story.request.key, token)

    def copied_out(self, pick: int) -> None:
        sealed = self.copies.pop(pick % len(self.copies))
        assert tuple(self.engine.cells[sealed.block]) == sealed.tokens, "overwritten while it was copied out"
        self.batcher.unpin(sealed.block)

    # --- events

    def tell(self, events: list[Event]) -> None:
        for event in events:
            story = self.stories[event.key]
            self.seen[type(event)] += 1
            assert story.ending is None, "an event after the last one"
            match event:
                case Preempted():
                    story.computed = None
                    story.landed.clear()
                case Reserved(key, fetch):
                    self.check_names(story, fetch)
                    if story.request.role is not Role.DECODE:
                        assert fetch and fetch[-1].index < story.known_blocks, "nobody claims to have these"
                        assert (fetch[-1].index + 1) * self.limits.block_size < len(story.known), (
                            "none left to draw from"
                        )
                    self.fetches += [(key, wanted) for wanted in fetch]
                case Sealed(_, sealed):
                    self.check_names(story, sealed)
                    self.copies += sealed if story.request.role in self.copied else ()
                case Emitted(_, index, token):
                    assert index == len(story.emitted)
                    story.emitted.append(token)
                case Finished(_, reason):
                    story.ending = reason
                case Failed(_, error):
                    assert isinstance(error, InternalError | DeadlinePassed)
                    story.ending = error.reason

    def check_names(self, story: Story, named: Sequence[FetchBlock] | Sequence[SealedBlock]) -> None:
        names = hashes(root(FINGERPRINT, story.request.salt), story.known, self.limits.block_size)
        assert all(names[block.index] == block.hash for block in named)

    # --- what always holds, and what holds at the end

    def check(self) -> None:
        self.batcher.check_invariants()
        idle = self.batcher.free_blocks + self.batcher.cached_blocks
        pinned = {block.block for block in self.copies} | {wanted.block for _, wanted in self.fetches}
        assert self.batcher.pinned_blocks == len(pinned) <= self.limits.num_blocks - idle

    def finish(self) -> None:
        """Let everything come to its end; then nothing is held, and every answer is the one of the request alone."""
        for _ in range(600):
            if not self.batcher.holdings(self.now) and not self.copies:
                break
            self.go_on()
        assert not self.batcher.holdings(self.now), "a request never ends"
        assert self.batcher.free_blocks + self.batcher.cached_blocks == self.limits.num_blocks
        assert self.batcher.num_running == self.batcher.num_waiting == self.batcher.pinned_blocks == 0
        for story in self.stories.values():
            self.check_answer(story)

    def go_on(self) -> None:
        while self.fetches:
            self.land(0)
        while self.copies:
            self.copied_out(0)
        while self.awaiting_first():
            self.first_token(0)
        for story in self.stories.values():
            answer, _ = expected_answer(story.request)
            if story.ending is None and len(story.emitted) == len(answer):
                assert self.batcher.cancel(story.request.key), "the first token ended it"
                story.ending = "cancelled"
        self.work()
        self.check()

    def check_answer(self, story: Story) -> None:
        answer, reason = expected_answer(story.request)
        assert story.ending is not None
        assert tuple(story.emitted) == answer[: len(story.emitted)]
        if story.ending is FinishReason.HANDED_OVER:
            assert story.request.role is Role.PREFILL
            assert len(story.emitted) == len(story.request.emitted) + 1 < len(answer)
        elif isinstance(story.ending, FinishReason):
            assert (tuple(story.emitted), story.ending) == (answer, reason)
