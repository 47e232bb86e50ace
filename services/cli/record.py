"""The state file: how `status`, `chat` and `trace` find the cluster that `up` runs.

A lock held by `up` for life says whether the recorded cluster lives; the system lets go of it however `up` ends.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from services.cli.errors import CommandError

RECORD = "cluster.json"
LOCK = "cluster.lock"


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """One process of the cluster."""

    service: str
    name: str
    address: str
    pid: int


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """Where everything of a running cluster is."""

    pid: int
    gateway_grpc: str
    gateway_http: str
    nats_url: str
    collector: str
    token: str
    """Shown with internal calls; the reason why only the owner may read the file."""
    services: tuple[ServiceRecord, ...]
    control: str = ""
    """Where `diptych scale` asks."""


@contextmanager
def owned(directory: Path) -> Iterator[None]:
    """The right to run the one cluster of this state directory. Raises CommandError while another one runs."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _locked(lock, fcntl.LOCK_EX):
            raise CommandError("a cluster is already running here; stop it with Ctrl-C where it was started")
        forget(directory)
        try:
            yield
        finally:
            forget(directory)
    finally:
        os.close(lock)


def save(record: ClusterRecord, directory: Path) -> None:
    """Writes the record for its owner only, whole or not at all."""
    draft = directory / f"{RECORD}.new"
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(record), file, indent=1)
    draft.replace(directory / RECORD)


def load(directory: Path) -> ClusterRecord:
    """The record of the running cluster. Raises CommandError if none runs."""
    if not _is_owned(directory):
        raise CommandError("no cluster is running; start one with `diptych up`")
    try:
        fields = json.loads((directory / RECORD).read_text(encoding="utf-8"))
        services = tuple(ServiceRecord(**service) for service in fields.pop("services"))
        return ClusterRecord(services=services, **fields)
    except FileNotFoundError:
        raise CommandError("the cluster is still starting; try again when it says that it is ready") from None
    except (ValueError, TypeError, KeyError):
        raise CommandError(f"{directory / RECORD} is damaged; restart the cluster") from None


def forget(directory: Path) -> None:
    """Removes the record, if there is one."""
    (directory / RECORD).unlink(missing_ok=True)


def _is_owned(directory: Path) -> bool:
    try:
        lock = os.open(directory / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _locked(lock, fcntl.LOCK_SH)
    finally:
        os.close(lock)


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
