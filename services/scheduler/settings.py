"""Settings of the scheduler."""

from pydantic import Field

from services.runtime.settings import ServiceSettings


class Settings(ServiceSettings):
    """`DIPTYCH_SCHEDULER__*`."""

    workers: list[str] = Field(default_factory=list)
    """Static addresses of prefill and decode workers; they serve also while the bus is away."""
    kvstores: list[str] = Field(default_factory=list)
    """Static addresses of kvstores."""
    max_queue: int = Field(default=256, ge=1)
    """Most requests that wait for a place; more are refused at once."""
    queue_timeout: float = Field(default=60.0, gt=0)
    """Seconds after which a waiting request is told to come back later."""
    max_attempts: int = Field(default=3, ge=1)
    """How often a request is begun before its loss is reported."""
