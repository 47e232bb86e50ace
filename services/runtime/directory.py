"""Who is there: announcements heard on the bus, and static addresses that serve without it.

Silence alone drops nobody while the bus itself is away, and a live session outranks both.
"""

import logging
import time
from collections.abc import Callable, Iterable

from google.protobuf.message import DecodeError

from services.pb import operations_pb2
from services.runtime.bus import Bus

log = logging.getLogger(__name__)

ANNOUNCE_SECONDS = 0.5
SILENT_SECONDS = 3.0
SUBJECT = "diptych.announce"
BLOCKS_SUBJECT = "diptych.blocks"

Heard = Callable[[operations_pb2.Announcement, str], None]


def subject(service: str, name: str) -> str:
    """Where a process announces itself. Names have no dots, which separate parts of a subject."""
    return f"{SUBJECT}.{service}.{name.replace('.', '-')}"


def blocks_subject(store: str) -> str:
    """Where a store says which blocks it holds."""
    return f"{BLOCKS_SUBJECT}.{store.replace('.', '-')}"


class Directory:
    """The latest announcement of every process of the services named. Register before the bus is entered."""

    def __init__(self, bus: Bus, services: Iterable[str], heard: Heard | None = None) -> None:
        self._bus = bus
        self._heard = heard
        self._entries: dict[tuple[str, str], tuple[operations_pb2.Announcement, float]] = {}
        for service in services:
            bus.listen(f"{SUBJECT}.{service}.*", self._on_announcement)

    def present(self, service: str) -> list[operations_pb2.Announcement]:
        """Processes of `service` that are announced, or were when the bus was last there."""
        now = time.monotonic()
        return [
            announcement
            for (kind, _), (announcement, heard_at) in self._entries.items()
            if kind == service and not self._is_silent(heard_at, now)
        ]

    def forget_silent(self) -> None:
        """Drops entries that have been silent while the bus was there, so that the table does not grow for ever."""
        now = time.monotonic()
        for key, (_, heard_at) in list(self._entries.items()):
            if self._is_silent(heard_at, now):
                del self._entries[key]

    def _is_silent(self, heard_at: float, now: float) -> bool:
        since = self._bus.connected_since
        return since is not None and now - max(heard_at, since) > SILENT_SECONDS

    def _on_announcement(self, payload: bytes, headers: dict[str, str]) -> None:
        try:
            announcement = operations_pb2.Announcement.FromString(payload)
        except DecodeError:
            log.warning("an announcement on the bus is not readable")
            return
        key = (announcement.service, announcement.name)
        if announcement.is_draining and not announcement.is_ready:
            known = self._entries.get(key)
            # A former life of the same name may still be draining beside the present one.
            if known and known[0].incarnation == announcement.incarnation:
                del self._entries[key]
        else:
            self._entries[key] = (announcement, time.monotonic())
        if self._heard:
            self._heard(announcement, headers.get("traceparent", ""))
