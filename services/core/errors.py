"""The closed vocabulary of errors.

    DiptychError
    ├── InvalidRequest ── ContextTooLong
    ├── Unauthenticated, PermissionDenied, UnknownModel, NotFound
    ├── RateLimited, Overloaded, QueueTimeout          (try later: `retry_after`)
    ├── NeverFits, Poisonous
    ├── WorkerLost, Draining, NoWorkers                (try elsewhere)
    ├── KVMissing, KVCorrupt, KVIncompatible, StaleHandoff
    ├── DeadlinePassed
    └── EngineFault, InternalError

`runtime/edge.py` maps each class to a gRPC status and back; the gateway maps it to HTTP. Raise `Overloaded` in a
worker, catch `Overloaded` in the gateway. Messages are for people: what was wrong, which field, what to do; they
never echo the input.
"""

from typing import ClassVar, Literal

Retry = Literal["never", "later", "elsewhere", "restart"]


class DiptychError(Exception):
    """Base of every error that may cross a process boundary."""

    retry: ClassVar[Retry] = "never"

    def __init__(self, message: str, *, field: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        """The request field at fault, in the caller's spelling; empty if none is."""
        self.retry_after = retry_after
        """Seconds after which trying again may work; 0 if unknown."""

    @property
    def reason(self) -> str:
        """The name that crosses the wire."""
        return type(self).__name__


class InvalidRequest(DiptychError):
    """A field of the request is missing, of the wrong form or out of range."""


class ContextTooLong(InvalidRequest):
    """The prompt leaves no room for a single token in the model's context."""


class Unauthenticated(DiptychError):
    """No credential, or one that is not known."""


class PermissionDenied(DiptychError):
    """A known caller asked for what it may not have."""


class UnknownModel(DiptychError):
    """The named model is not served here."""


class NotFound(DiptychError):
    """The named thing (a finished request, a trace) is not kept here, or no longer."""


class RateLimited(DiptychError):
    """The caller is over its own limit."""

    retry = "later"


class Overloaded(DiptychError):
    """No room now; the request was not begun."""

    retry = "later"


class QueueTimeout(DiptychError):
    """The request waited longer than its class allows."""

    retry = "later"


class NeverFits(DiptychError):
    """The request is larger than a pool it must pass, so waiting cannot help."""


class Poisonous(DiptychError):
    """Workers died while they computed the request, so it is not tried again."""


class WorkerLost(DiptychError):
    """The process that held the request died, hung or became unreachable."""

    retry = "elsewhere"


class Draining(DiptychError):
    """The process is leaving and takes nothing new."""

    retry = "elsewhere"


class NoWorkers(DiptychError):
    """No process of the kind that is needed is known."""

    retry = "elsewhere"


class KVMissing(DiptychError):
    """A block that was promised is not there; recompute it."""

    retry = "restart"


class KVCorrupt(DiptychError):
    """A block does not match its checksum; recompute it."""

    retry = "restart"


class KVIncompatible(DiptychError):
    """The two sides differ in weights or KV format and must not exchange blocks."""


class StaleHandoff(DiptychError):
    """The hand-over was closed, or belongs to another attempt or incarnation; nothing was written."""


class DeadlinePassed(DiptychError):
    """The caller's deadline passed before the answer was complete."""


class EngineFault(DiptychError):
    """The engine broke; the worker stops serving."""

    retry = "elsewhere"


class InternalError(DiptychError):
    """Anything unforeseen; the text is opaque and carries an error id for the log."""


BY_REASON: dict[str, type[DiptychError]] = {
    cls.__name__: cls
    for cls in (
        InvalidRequest,
        ContextTooLong,
        Unauthenticated,
        PermissionDenied,
        UnknownModel,
        NotFound,
        RateLimited,
        Overloaded,
        QueueTimeout,
        NeverFits,
        Poisonous,
        WorkerLost,
        Draining,
        NoWorkers,
        KVMissing,
        KVCorrupt,
        KVIncompatible,
        StaleHandoff,
        DeadlinePassed,
        EngineFault,
        InternalError,
    )
}
"""Every error that may be raised, by the name that crosses the wire."""


def error_from(reason: str, message: str, *, field: str = "", retry_after: float = 0.0) -> DiptychError:
    """The same error the other side raised; `InternalError` for a reason this version does not know."""
    return BY_REASON.get(reason, InternalError)(message, field=field, retry_after=retry_after)
