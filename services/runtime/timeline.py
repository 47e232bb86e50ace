"""A request's segments and spans in one process, kept together so that they never tell different stories."""

from collections.abc import Iterable, Mapping

from opentelemetry.trace import Span

from services.core.ledger import Ledger, Segment
from services.runtime.telemetry import AttributeValue, Telemetry, traceparent


class Timeline:
    """In exactly one segment from `now` until `close`; each segment is a span of the same name below `parent`."""

    def __init__(self, telemetry: Telemetry, parent: str, now: float) -> None:
        self.parent = parent
        self._telemetry = telemetry
        self._ledger = Ledger(now)
        self._name = ""
        self._span: Span | None = None

    @property
    def segment(self) -> str:
        """The segment it is in; empty before the first and after the last."""
        return self._name

    @property
    def traceparent(self) -> str:
        """Of the current segment's span; of the parent where the segment has none."""
        return traceparent(self._span) if self._span else self.parent

    def enter(self, name: str, now: float, attributes: Mapping[str, AttributeValue] | None = None) -> None:
        """Leaves the current segment for `name`."""
        self._leave(now)
        self._name = name
        self._span = self._telemetry.start(name, self.parent, attributes=attributes)

    def enter_unspanned(self, name: str, now: float) -> None:
        """As `enter`, for a segment whose span somebody else makes."""
        self._leave(now)
        self._name = name

    def absorb(self, hop: str, callee: Iterable[Segment], now: float) -> None:
        """The current segment was a call: the callee's segments take its place, and `hop` what they leave over."""
        self._end_span(None)
        self._name = ""
        self._ledger.absorb(hop, callee, now)

    def lapse(self, name: str, now: float) -> None:
        """Time since the last segment went to something that is over: a call that failed."""
        self._end_span(None)
        self._name = ""
        self._ledger.close(name, now)

    def close(self, now: float, error: BaseException | None = None) -> None:
        """Leaves the last segment; closing twice does nothing."""
        self._leave(now, error)

    def take(self) -> tuple[Segment, ...]:
        """Segments closed since the last `take`."""
        return self._ledger.take()

    def _leave(self, now: float, error: BaseException | None = None) -> None:
        if self._name:
            self._ledger.close(self._name, now)
        self._name = ""
        self._end_span(error)

    def _end_span(self, error: BaseException | None) -> None:
        if self._span:
            self._telemetry.end(self._span, error)
            self._span = None
