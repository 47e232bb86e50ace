"""Which requests that lost their worker are begun anew, and where: the budget of all, and the turns of suspects."""

from services.core.errors import WorkerLost
from services.scheduler.asking import MayUse
from services.scheduler.cluster_view import ClusterView
from services.scheduler.retry_budget import RetryBudget
from services.scheduler.settings import Settings
from services.scheduler.suspicion import Trials
from services.scheduler.ticket import Ticket

COME_BACK_SECONDS = 5.0


class Retries:
    """Of one scheduler."""

    def __init__(self, settings: Settings, view: ClusterView) -> None:
        self._budget = RetryBudget(settings.retry_share, settings.retry_rate, settings.retry_burst)
        self._trials: Trials[Ticket] = Trials(settings.trial_seconds)
        self._view = view

    def came(self) -> None:
        """A request that was never begun has come."""
        self._budget.came()

    def lost(self, ticket: Ticket, in_flight: int, now: float) -> WorkerLost | None:
        """An attempt is over and another may follow; the error that ends the request if it may not."""
        if not self._budget.take(in_flight, now):
            message = "the worker was lost, and too many requests have to be begun anew"
            return WorkerLost(message, retry_after=COME_BACK_SECONDS)
        if ticket.story.is_suspect:
            self._trials.suspected(ticket, now)
        return None

    def closed_to(self, ticket: Ticket, now: float) -> frozenset[str]:
        """Names of the workers on which another suspect has its turn, if `ticket` is one that can wait."""
        workers = self._view.workers
        return frozenset(workers[each].name for each in self._trials.closed_to(ticket, now) if each in workers)

    def began(self, ticket: Ticket) -> None:
        """It has a place."""
        self._trials.began(ticket, ticket.story.workers)

    def clear(self) -> bool:
        """Forgets suspects that got on; whether there were any, so that somebody's turn has come."""
        cleared = [ticket for ticket in self._trials.tried() if not ticket.story.is_suspect]
        for ticket in cleared:
            self._trials.over(ticket)
        return bool(cleared)

    def over(self, ticket: Ticket) -> None:
        """It has ended."""
        self._trials.over(ticket)

    def next_end(self, now: float) -> float | None:
        """When somebody has waited for a turn for long enough."""
        return self._trials.next_end(now)


def without(closed: frozenset[str], may_use: MayUse | None) -> MayUse | None:
    """`may_use`, with the workers of these names closed."""
    if not closed:
        return may_use
    return lambda name: name not in closed and (may_use is None or may_use(name))
