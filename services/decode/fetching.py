"""Decode's duty: claim the hand-over at once, fill the reserved blocks as they appear, account for the waiting.

A split request's ledger begins here with the first token's arrival, for what came before ran beside prefill:

    first token ─▶ decode.queue ─▶ kv.put ─▶ kv.get ─▶ decode.admit ─▶ decode.run ─▶ last token
                   no blocks yet   block not  on its    waits for       steps
                                   in store   way       a step

Each of the first three is left out when it is already over by then. A request that is whole is in `decode.fetch` while
the beginning of its prompt comes from a store's cache. What is computed here is kept in a store (`AnswerKeeping`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from services.core.batch_events import Reserved, SealedBlock
from services.core.batcher import Batcher
from services.core.block_facts import BlockSource
from services.core.ids import RequestKey
from services.core.ledger import Segment
from services.core.prefix_fetch import KnownPrefix
from services.core.request import FinishReason, Role
from services.runtime.answer_keeping import AnswerKeeping
from services.runtime.duty import Work
from services.runtime.kv_client import KVClient
from services.runtime.kv_fetch import Fetch, Fetched, ReaderCalls
from services.runtime.kv_way import Lane
from services.runtime.prefix_loans import PrefixLoans
from services.runtime.step_loop import StepLoop
from services.runtime.telemetry import Telemetry
from services.runtime.timeline import Timeline


@dataclass(slots=True)
class _Arrival:
    """How far a split request is."""

    fetch: Fetch
    first_token_at: float | None = None
    has_room: bool = False
    is_settled: bool = False
    """Every block that will come is here."""

    @property
    def segment(self) -> str:
        if not self.has_room:
            return "decode.queue"
        return "decode.admit" if self.is_settled else "kv.put"


class Fetching:
    """One fetch per split request; a request that is whole just runs."""

    roles = frozenset({Role.WHOLE, Role.DECODE})

    def __init__(
        self,
        client: KVClient,
        loop: StepLoop,
        telemetry: Telemetry,
        *,
        prefix_fetch: bool = True,
        publish_answers: bool = True,
    ) -> None:
        self._client = client
        self._loop = loop
        self._batcher: Batcher = loop.batcher
        self._telemetry = telemetry
        self._loans = PrefixLoans(client, loop, is_on=prefix_fetch)
        self._keeping = AnswerKeeping(client, loop, is_on=publish_answers)
        self._arrivals: dict[RequestKey, _Arrival] = {}

    def known(self, sources: Sequence[BlockSource], now: float) -> KnownPrefix:
        return self._loans.known(sources, now)

    def begin(self, work: Work, now: float) -> None:
        if work.request.role is Role.WHOLE:
            work.timeline.enter("decode.queue", now)
            return
        lane = Lane(work.key, work.kvstore, work.timeline.parent)
        calls = ReaderCalls(landed=partial(self._landed, work.key), no_more=partial(self._settled, work))
        self._arrivals[work.key] = _Arrival(self._client.claim(lane, calls))

    def started(self, work: Work, now: float) -> None:
        if work.request.role is Role.WHOLE and work.timeline.segment == "decode.queue":
            work.timeline.enter("decode.prefill", now, {"diptych.prompt_tokens": len(work.request.prompt)})

    def reserved(self, work: Work, event: Reserved, now: float) -> None:
        if work.request.role is Role.WHOLE:
            work.timeline.enter("decode.fetch", now)
            self._loans.borrow(work, event, now, self._fetched)
            return
        arrival = self._arrivals[work.key]
        arrival.has_room = True
        arrival.fetch.want(event.fetch, now)
        self._move(work, arrival, now)

    def planned(self, work: Work, now: float) -> None:
        if work.timeline.segment == "decode.admit":
            work.timeline.enter("decode.run", now)

    def sealed(self, work: Work, blocks: tuple[SealedBlock, ...]) -> None:
        self._keeping.add(work, blocks)

    def first_token(self, work: Work, now: float) -> None:
        if arrival := self._arrivals.get(work.key):
            arrival.first_token_at = now
            arrival.fetch.expect()
            work.timeline = Timeline(self._telemetry, work.timeline.parent, now)
            self._move(work, arrival, now)

    def emitted(self, work: Work, now: float) -> tuple[Segment, ...]:
        if work.timeline.segment == "decode.prefill":
            work.timeline.enter("decode.run", now)
        return ()

    def finished(self, work: Work, reason: FinishReason) -> bool:
        self.abandon(work)
        return True

    def abandon(self, work: Work) -> None:
        if arrival := self._arrivals.pop(work.key, None):
            arrival.fetch.release()
        self._loans.release(work.key)
        self._keeping.finish(work.key)

    def _fetched(self, work: Work, now: float) -> None:
        """What a store lent of the prompt of a whole request is here."""
        if work.timeline.segment == "decode.fetch":
            work.timeline.enter("decode.run" if work.has_spoken else "decode.prefill", now)

    def _landed(self, key: RequestKey, index: int) -> None:
        self._batcher.landed(key, index)

    def _settled(self, work: Work, fetched: Fetched) -> None:
        """Nothing is copied for this request any more, also when it is gone."""
        self._batcher.no_more(work.key)
        self._loop.wake()
        arrival = self._arrivals.get(work.key)
        if arrival is None:
            return
        arrival.is_settled = True
        if work.timeline.segment == "kv.put" and arrival.first_token_at is not None:
            work.timeline.enter_unspanned("kv.get", max(fetched.all_there_at, arrival.first_token_at))
        self._move(work, arrival, fetched.ended_at)

    def _move(self, work: Work, arrival: _Arrival, now: float) -> None:
        """Into the segment that the facts say. The spans of kv.put and kv.get are made where the bytes move."""
        if arrival.first_token_at is None or work.timeline.segment in (arrival.segment, "decode.run"):
            return
        if arrival.segment == "kv.put":
            work.timeline.enter_unspanned("kv.put", now)
        else:
            work.timeline.enter(arrival.segment, now)
