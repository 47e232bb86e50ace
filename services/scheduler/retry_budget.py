"""How many requests a scheduler may begin anew: all that are in flight once, beyond that a share of those that come.

Attempts are bounded for each request; this bounds them for all. Without it, a cluster that loses worker after worker
does the same work again and again, and has no room for requests that were never begun (Beyer et al., "Site Reliability
Engineering", chapter 22, "Retries"). Pure.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class RetryBudget:
    """Times are on one monotonic clock, in seconds."""

    share: float
    """Retries that a request which comes pays for."""
    rate: float
    """Retries a second that nobody pays for."""
    burst: float
    """Retries that are always possible after a quiet time, however few requests are in flight."""
    _owed: float = field(default=0.0, init=False)
    _at: float = field(default=0.0, init=False)

    def came(self) -> None:
        """A request that was never begun has come."""
        self._owed = max(self._owed - self.share, 0.0)

    def take(self, in_flight: int, now: float) -> bool:
        """Whether one of `in_flight` requests may be begun anew; it is then counted."""
        self._owed = max(self._owed - self.rate * max(now - self._at, 0.0), 0.0)
        self._at = now
        if self._owed + 1 > max(self.burst, in_flight):
            return False
        self._owed += 1
        return True
