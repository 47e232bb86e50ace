"""The queue against a slow one that is obviously right, and what nobody may ever find in it."""

import math
from collections import Counter
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.core.errors import DeadlinePassed, Overloaded, QueueTimeout
from services.core.ids import RequestId, RequestKey
from services.core.request import Request, Sampling, Stopping
from services.scheduler.admission import Queue
from services.scheduler.classes import TrafficClass
from tests.support.slow_queue import Entry, SlowQueue

CLASSES = {
    "default": TrafficClass(),
    "gold": TrafficClass("gold", weight=4.0, level=2, max_queue=4, shares={"a": 2.0}),
    "batch": TrafficClass("batch", level=-1, queue_timeout=3.0),
}
MOST, TIMEOUT = 8, 10.0


class QueueMachine(RuleBasedStateMachine):
    """Requests come, are placed, find no room, leave, come back and run out of time."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue(MOST, TIMEOUT, list(CLASSES.values()))
        self.slow = SlowQueue(CLASSES, TIMEOUT)
        self.now = 0.0
        self.count = 0

    @rule(
        client=st.sampled_from("abc"),
        traffic=st.sampled_from(["", "gold", "batch", "unknown"]),
        priority=st.integers(-1, 1),
        model=st.sampled_from(["m", "n"]),
        within=st.none() | st.floats(0.5, 20),
    )
    def push(self, client: str, traffic: str, priority: int, model: str, within: float | None) -> None:
        self.count += 1
        deadline = None if within is None else self.now + within
        request = Request(
            RequestKey(RequestId(f"r{self.count}")),
            (1,),
            Sampling(),
            Stopping(4),
            priority=priority,
            client=client,
            traffic_class=traffic,
            deadline=deadline,
        )
        own = CLASSES.get(traffic, CLASSES["default"])
        waiting = Counter(entry.traffic.name for entry in self.slow.entries)
        is_full = len(self.slow.entries) >= MOST or waiting[own.name] >= (own.max_queue or MOST)
        try:
            self.queue.push(request, self.now, model)
        except Overloaded as refused:
            assert is_full and refused.retry_after > 0
            assert not self.who_should_give_way(request, own)
            return
        # Whoever gives way is gone when the newcomer joins: a lane that has lost its only one begins anew.
        self.note_who_gave_way(request, own, is_full=is_full)
        self.slow.push(request, self.now, model, is_returned=False)

    def note_who_gave_way(self, newcomer: Request, own: TrafficClass, *, is_full: bool) -> None:
        gone = [each for each in self.queue.expired(self.now) if isinstance(each[1], Overloaded)]
        assert len(gone) == is_full
        for request, _ in gone:
            entry = self.entry(request)
            assert not entry.is_returned and request.key != newcomer.key
            assert entry.traffic.level <= own.level, "the least important gives way"
            lower = [e for e in self.slow.entries if e.traffic.level < entry.traffic.level and not e.is_returned]
            is_own_bound = entry.traffic is own and own.max_queue and self.waiting_in(own) >= own.max_queue
            assert is_own_bound or not lower
            self.slow.remove(entry)

    def who_should_give_way(self, newcomer: Request, own: TrafficClass) -> list[Entry]:
        """Those that are surely to go before a newcomer: of less important classes, if the class has room."""
        if self.waiting_in(own) >= (own.max_queue or MOST):
            return []
        return [entry for entry in self.slow.entries if entry.traffic.level < own.level and not entry.is_returned]

    def waiting_in(self, traffic: TrafficClass) -> int:
        return sum(entry.traffic is traffic for entry in self.slow.entries)

    @rule(work=st.integers(1, 9), skipped=st.integers(0, 2))
    def place(self, work: int, skipped: int) -> None:
        """The first heads find no room, the next one does."""
        expected = self.slow.heads()
        seen = []
        for request in self.queue.candidates(self.now):
            seen.append(request.key)
            if len(seen) > skipped:
                self.queue.take(request.key, float(work))
                break
        assert seen == [entry.request.key for entry in expected][: skipped + 1]
        if len(seen) > skipped:
            self.slow.take(expected[skipped], float(work))

    @precondition(lambda self: self.slow.entries)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.slow.entries))
        assert self.queue.remove(entry.request.key)
        assert not self.queue.remove(entry.request.key)
        self.slow.remove(entry)

    @precondition(lambda self: self.slow.entries)
    @rule(work=st.integers(1, 9))
    def place_and_lose(self, work: int) -> None:
        """It comes back as another attempt, and nobody has to give way to it."""
        entry = self.slow.heads()[0]
        request = self.queue.take(entry.request.key, float(work))
        self.slow.take(entry, float(work))
        again = replace(request, key=RequestKey(request.key.request_id, request.key.attempt + 1))
        self.queue.push_back(again, self.now, None, entry.model)
        self.slow.push(again, self.now, entry.model, is_returned=True)

    @rule(seconds=st.floats(0.1, 4))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        late = {request.key: error for request, error in self.queue.expired(self.now)}
        expected = [entry for entry in self.slow.entries if entry.until <= self.now]
        assert late.keys() == {entry.request.key for entry in expected}
        for entry in expected:
            deadline = entry.request.deadline
            is_past = deadline is not None and deadline <= self.now
            assert isinstance(late[entry.request.key], DeadlinePassed if is_past else QueueTimeout)
            self.slow.remove(entry)

    @invariant()
    def they_agree(self) -> None:
        assert len(self.queue) == len(self.slow.entries)
        assert (self.queue.next_expiry() or math.inf) == self.slow.next_expiry()
        heads = [request.key for request in self.queue.candidates(self.now)]
        assert heads == [entry.request.key for entry in self.slow.heads()]
        waiting = {name: count for name, _, count in self.queue.counts()}
        assert waiting == {name: self.waiting_in(each) for name, each in CLASSES.items()}
        for name, each in CLASSES.items():
            fresh = sum(entry.traffic is each and not entry.is_returned for entry in self.slow.entries)
            assert fresh <= (each.max_queue or MOST), name

    def entry(self, request: Request) -> Entry:
        [entry] = [entry for entry in self.slow.entries if entry.request.key == request.key]
        return entry


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
