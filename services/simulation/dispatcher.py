"""The scheduler's side of a simulation: its own queue, cluster view and policy, told what a real one is told."""

from collections.abc import Callable, Sequence

from services.core.block_facts import Facts, Stock, short
from services.core.blocks import BlockNames
from services.core.ids import BlockHash, RequestId, RequestKey
from services.core.request import Request, Sampling, Stopping
from services.scheduler.admission import Queue
from services.scheduler.asking import Asking, Rules
from services.scheduler.cluster_view import ClusterView, WorkerStatus
from services.scheduler.policies import Place
from services.scheduler.story import Placement

FINGERPRINT = "00" * 32
"""Of the one model there is."""
UNBOUNDED = 1 << 30
"""Nobody is turned away: a comparison of waiting times must serve the same requests."""
HASH_BYTES = 32
ANY_WAY = Rules()


class TraceNames(BlockNames):
    """Block names of a recorded prompt, whose tokens nobody has."""

    def __init__(self, names: Sequence[int]) -> None:
        super().__init__(b"")
        self._hashes = [hash_of(name) for name in names]

    def of(self, tokens: Sequence[int], fingerprint: bytes, block_size: int) -> Sequence[BlockHash]:
        return self._hashes


def hash_of(name: int) -> BlockHash:
    """A block's hash, different for every name."""
    return BlockHash(name.to_bytes(HASH_BYTES // 2, "little", signed=True).ljust(HASH_BYTES, b"\0"))


class Dispatcher:
    """`began` is called as requests leave the queue."""

    def __init__(self, place: Place, began: Callable[[int, Placement], None]) -> None:
        self.view = ClusterView()
        self._place = place
        self._began = began
        self._queue = Queue(UNBOUNDED, float(UNBOUNDED))
        self._requests: dict[RequestKey, tuple[int, Request, TraceNames]] = {}
        self._keys: dict[int, RequestKey] = {}
        self._is_stuck = False
        """Nobody had room for the head of the queue, and nothing has changed since."""
        self._told: dict[str, int] = {}
        """Messages of each store about its blocks."""

    def __len__(self) -> int:
        return len(self._queue)

    def arrived(self, number: int, lengths: tuple[int, int], names: Sequence[int], now: float) -> None:
        """A request of (prompt, answer) tokens."""
        key = RequestKey(RequestId(f"{number:08x}"))
        request = Request(key, (0,) * lengths[0], Sampling(), Stopping(lengths[1]))
        self._requests[key] = (number, request, TraceNames(names))
        self._keys[number] = key
        self._queue.push(request, now)

    def assign(self, now: float) -> None:
        """Gives places while there are any."""
        if not self._queue or self._is_stuck:
            return
        for request in self._queue.candidates(now):
            number, _, names = self._requests[request.key]
            placement = self._place(Asking(request, self.view, names, now, ANY_WAY), FINGERPRINT)
            if placement is None:
                self._queue.stalled(request.key, now)
                self._is_stuck = True
            else:
                self._queue.take(request.key)
                self._count(placement, 1)
                hashes = names.of(request.tokens, b"", 0)
                self.view.placed_on(request, placement.record, now, hashes)
                self._began(number, placement)

    def first_token(self, number: int, now: float) -> None:
        self.view.first_token(self._keys[number], now)

    def left(self, worker: str) -> None:
        """A request's part there is over."""
        self._is_stuck = False
        self.view.count(worker, -1)

    def over(self, number: int, now: float, answered: int) -> None:
        """A request's answer is complete."""
        self.view.over(self._keys[number], now, answered)
        self._forget(number)

    def heard(self, status: WorkerStatus, now: float) -> None:
        """A worker's word on its load."""
        self._is_stuck = False
        self.view.update(status, now)

    def stored(self, store: str, kv_format: str, came: Sequence[int], went: Sequence[int]) -> None:
        """What a store holds more, and no longer."""
        if not came and not went:
            return
        self._told[store] = sequence = self._told.get(store, 0) + 1
        stock = Stock(store, store, "1", FINGERPRINT, kv_format)
        added, removed = (tuple(short(hash_of(name)) for name in names) for names in (came, went))
        self.view.prefixes.hear(Facts(stock, sequence, added, removed))

    def _count(self, placement: Placement, change: int) -> None:
        for worker in {placement.decode, placement.prefill} - {""}:
            self.view.count(worker, change)

    def _forget(self, number: int) -> None:
        del self._requests[self._keys.pop(number)]
