"""What the cluster view and admission are told of a ticket, so that both count it once and let it go."""

import time

from services.core.errors import DiptychError, Draining, EngineFault, Overloaded
from services.pb import operations_pb2
from services.runtime.metrics import Metrics
from services.scheduler.cluster_view import ClusterView
from services.scheduler.entrance import Entrance
from services.scheduler.story import Phase
from services.scheduler.ticket import Ticket


class Accounts:
    """Of all tickets of a scheduler; keeps nothing of any itself."""

    def __init__(self, view: ClusterView, entrance: Entrance, metrics: Metrics) -> None:
        self._view = view
        self._entrance = entrance
        self._metrics = metrics

    def opened(self, ticket: Ticket) -> None:
        """It is new: its class is on its span and goes with it to the workers."""
        request = ticket.story.request
        ticket.span.set_attribute("diptych.traffic_class", self._entrance.class_of(request))
        ticket.level = self._entrance.level_of(request)

    def enter(self, ticket: Ticket, now: float) -> None:
        """It is queued. Raises NeverFits or Overloaded."""
        entered = self._entrance.enter(ticket.story.request, ticket.names, ticket.model, now)
        ticket.queued_until, ticket.expected = entered

    def count(self, ticket: Ticket) -> None:
        """Brings the counts of requests per worker and per class up to date."""
        workers = ticket.story.workers
        if workers and not ticket.counted:
            self._entrance.began(ticket, ticket.story.request, time.monotonic())
        elif ticket.counted and not workers:
            is_over = ticket.story.phase is Phase.ENDED
            self._entrance.left(ticket, ticket.story.request, time.monotonic(), is_over=is_over)
        for worker in workers - ticket.counted:
            self._view.count(worker, 1)
        for worker in ticket.counted - workers:
            self._view.count(worker, -1)
        ticket.counted = workers

    def first_token(self, ticket: Ticket, now: float) -> None:
        """The present attempt's prompt is computed."""
        self._view.first_token(ticket.filed, now)
        if ticket.expected:
            self._entrance.first_token(ticket.story.request, ticket.expected, now - ticket.began)
            ticket.expected = 0.0

    def refused(self, worker: str, error: DiptychError) -> None:
        """What a worker says of itself by refusing counts until it speaks again."""
        if isinstance(error, Overloaded):
            self._view.overloaded.add(worker)
        elif isinstance(error, Draining | EngineFault):
            self._view.withdraw(worker)

    def ended(self, ticket: Ticket, error: DiptychError | None) -> None:
        """Its last word goes to the client; one that is turned away for want of room is counted and seen."""
        request = ticket.story.request
        if self._entrance.is_shed(request, error):
            traffic_class = self._entrance.class_of(request)
            self._metrics.count("diptych_shed_total", traffic_class=traffic_class)
            ticket.span.set_attribute("diptych.shed", traffic_class)
        elif error is None:
            self._entrance.answered(request, len(ticket.story.emitted))

    def class_loads(self) -> list[operations_pb2.ClassLoad]:
        """What each traffic class has here."""
        return [
            operations_pb2.ClassLoad(name=name, running=running, waiting=waiting, shed=shed)
            for name, running, waiting, shed in self._entrance.loads()
        ]
