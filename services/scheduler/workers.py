"""Sessions to all workers, and the view of the cluster that they and the bus keep up to date.

A worker is in the view while its session lives; what it says on the session's opening outranks the bus.
"""

import asyncio
import logging
import time

from services.core.errors import DiptychError
from services.core.step_cost import StepCost
from services.pb import operations_pb2, operations_pb2_grpc, session_pb2, session_pb2_grpc
from services.runtime import dial
from services.runtime.directory import Directory
from services.runtime.edge import remote_errors
from services.runtime.process import Process
from services.runtime.session import Session, Terms
from services.runtime.session_pool import SessionPool
from services.runtime.telemetry import Telemetry
from services.scheduler.cluster_view import ClusterView
from services.scheduler.conductor import Conductor
from services.scheduler.settings import Settings
from services.scheduler.worker_status import BLOCK_SIZE, STEP_SECONDS, WorkerStatus

log = logging.getLogger(__name__)

WORKER_SERVICES = ("prefill", "decode")
REFRESH_SECONDS = 0.5
NO_COST = StepCost(0.0, 0.0, 0.0)
SILENT_SECONDS = 1.2
"""A worker that has said nothing for so long is asked."""


class Workers:
    """The scheduler's side of its sessions to workers. Run `keep` for as long as the scheduler lives."""

    def __init__(self, process: Process[Settings], view: ClusterView, conductor: Conductor, terms: Terms) -> None:
        self._settings = process.settings
        self._telemetry: Telemetry = process.telemetry
        self._token = process.settings.token.get_secret_value()
        self._view = view
        self._conductor = conductor
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._greeted: dict[str, str] = {}
        """Name to the incarnation whose discovery has its span."""
        self._heard_at: dict[str, float] = {}
        self._directory = Directory(process.bus, (*WORKER_SERVICES, "kvstore"), self._heard)
        self._pool = SessionPool(
            session_pb2.Down, lambda channel: session_pb2_grpc.SessionStub(channel).Open, self, terms, self._token
        )
        conductor.send = self.send

    def send(self, address: str, message: session_pb2.Down) -> bool:
        """Whether the worker has a live session to carry `message`."""
        session = self._pool.session(address)
        if session is None or not session.is_open:
            return False
        session.send(message)
        return True

    async def keep(self) -> None:
        """Dials whoever is announced or configured, and forgets whoever has left, for ever."""
        async with self._pool:
            for address in self._settings.workers:
                self._pool.ensure(address)
            try:
                while True:
                    self._refresh()
                    await asyncio.sleep(REFRESH_SECONDS)
            finally:
                await self._stop_asking()

    def peers(self) -> list[str]:
        """Names of the workers that a request can be placed on, and of the stores that all of them reach."""
        workers = [worker for worker in self._view.workers.values() if worker.is_ready]
        stores = self._view.stores_of(*workers) if workers else frozenset()
        names = [self._view.kvstores[address] for address in stores if address in self._view.kvstores]
        return sorted([*(worker.name for worker in workers), *names])

    # --- sessions

    def opened(self, session: Session[session_pb2.Down]) -> None:
        self._ask_soon(session.address)

    def received(self, session: Session[session_pb2.Down], message: session_pb2.Up, now: float) -> None:
        if message.WhichOneof("kind") == "events":
            self._conductor.heard(session.address, message.events, now)

    def closed(self, session: Session[session_pb2.Down]) -> None:
        self._view.drop(session.address)
        self._heard_at.pop(session.address, None)
        self._conductor.lost(session.address)

    # --- private

    def _refresh(self) -> None:
        self._directory.forget_silent()
        present = {a.address for service in WORKER_SERVICES for a in self._directory.present(service)}
        wanted = present | set(self._settings.workers)
        for address in self._pool.addresses():
            if address not in wanted and self._pool.session(address) is None:
                self._pool.drop(address)
        for address in present:
            self._pool.ensure(address)
        self._note_stores()
        self._ask_the_silent()
        # Whoever had no room half a second ago may have some now.
        self._view.overloaded.clear()
        self._conductor.assign()

    def _ask_the_silent(self) -> None:
        """While the bus is away, workers are asked how busy they are, lest one that was full stays full for ever.

        One that does not reach every store yet is asked sooner.
        """
        now = time.monotonic()
        for session in self._pool.sessions():
            worker = self._view.workers.get(session.address)
            is_linked = worker is not None and worker.stores >= self._view.kvstores.keys()
            patience = SILENT_SECONDS if is_linked else REFRESH_SECONDS
            if self._heard_at.get(session.address, 0.0) < now - patience:
                self._ask_soon(session.address)

    async def _stop_asking(self) -> None:
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def _ask_soon(self, address: str) -> None:
        if address not in self._asking:
            task = asyncio.create_task(self._ask(address), name=f"ask-{address}")
            self._asking[address] = task
            task.add_done_callback(lambda _: self._asking.pop(address, None))

    def _update(self, announcement: operations_pb2.Announcement) -> None:
        if self._pool.session(announcement.address):
            self._heard_at[announcement.address] = time.monotonic()
            self._view.update(status_of(announcement), time.monotonic())
            self._conductor.assign()

    def _note_stores(self) -> None:
        view = self._view
        announced = {a.address: a.name for a in self._directory.present("kvstore") if a.is_ready}
        view.kvstores = {address: address for address in self._settings.kvstores} | announced
        view.unready_stores &= frozenset().union(*(worker.stores for worker in view.workers.values()))

    def _heard(self, announcement: operations_pb2.Announcement, traceparent: str) -> None:
        if announcement.service not in WORKER_SERVICES:
            if announcement.is_ready:
                self._view.unready_stores.discard(announcement.address)
            else:
                self._view.unready_stores.add(announcement.address)
            self._note_stores()
            return
        if self._greeted.get(announcement.name) != announcement.incarnation:
            self._greeted[announcement.name] = announcement.incarnation
            with self._telemetry.phase("bus.discover", traceparent, worker=announcement.name):
                self._pool.ensure(announcement.address)
        self._update(announcement)

    async def _ask(self, address: str) -> None:
        """Who are you and how busy: so that the view does not depend on the bus."""
        try:
            async with dial.channel(address) as channel:
                with remote_errors():
                    status = operations_pb2_grpc.OperationsStub(channel).Status(
                        operations_pb2.StatusRequest(), metadata=dial.call_metadata(self._token), timeout=2
                    )
                    announcement = await status
        except DiptychError as error:
            log.info("a worker did not say who it is: %s", error.reason)
            return
        announcement.address = address
        self._update(announcement)


def status_of(announcement: operations_pb2.Announcement) -> WorkerStatus:
    """A worker's word, as the scheduler files it."""
    load = announcement.load
    return WorkerStatus(
        address=announcement.address,
        name=announcement.name,
        service=announcement.service,
        fingerprint=announcement.fingerprint,
        format=announcement.format,
        is_ready=announcement.is_ready,
        running=load.running,
        waiting=load.waiting,
        max_running=load.max_running,
        blocks_total=load.blocks_total,
        blocks_used=load.blocks_used,
        waiting_tokens=load.waiting_tokens,
        stores=frozenset(announcement.stores),
        near_stores=frozenset(announcement.near_stores),
        cost=_cost(load),
        step_seconds=load.step_seconds or STEP_SECONDS,
        block_size=load.block_size or BLOCK_SIZE,
        context_tokens=load.context_tokens,
        own_tokens=load.own_tokens,
        max_context=load.max_context,
    )


def _cost(load: operations_pb2.Load) -> StepCost | None:
    """None where nothing is fitted."""
    cost = StepCost(load.cost_fixed, load.cost_per_token, load.cost_per_token_context, load.cost_per_context)
    return cost if cost != NO_COST else None
