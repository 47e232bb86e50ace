"""Settings of the scheduler."""

from typing import Literal

from pydantic import Field, field_validator

from services.runtime.settings import ServiceSettings
from services.scheduler.admission import Queue
from services.scheduler.class_settings import ClassSettings


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
    classes: dict[str, ClassSettings] = Field(default_factory=dict)
    """Traffic classes by name; `default` is for requests without one."""
    gathering: float = Field(default=0.0, ge=0, le=5)
    """Seconds that the first request of an empty queue waits for others. They are then placed in order of share and
    priority instead of order of arrival; an idle cluster answers everybody later by as much."""
    patience: float = Field(default=1.0, ge=0)
    """Seconds for which other classes may pass a request that found no room; then room is left for it."""
    policy: Literal["ours", "random", "least_load", "cache_aware_local", "unsplit_chunked"] = "ours"
    """How places are chosen, by name (`policies.py`)."""
    split: Literal["auto", "always", "never"] = "auto"
    """Whether prompts are computed on prefill workers: where that is expected to be better, wherever there is one that
    can be paired, or nowhere."""
    max_attempts: int = Field(default=3, ge=1)
    """How often a request is begun before its loss is reported."""
    max_deaths: int = Field(default=2, ge=1)
    """A request that was being computed when so many workers died, and did not get on between, is not tried again."""
    trial_seconds: float = Field(default=0.5, ge=0)
    """After a worker's death its requests are begun one at a time on each of the others, for so long at most."""
    retry_share: float = Field(default=0.2, ge=0)
    """Requests that may be begun anew, as a share of those that come; all that are in flight may be once."""
    retry_rate: float = Field(default=1.0, ge=0)
    """How many may be begun anew in a second however few come."""
    retry_burst: int = Field(default=64, ge=1)
    """How many may be begun anew at once however few are in flight."""

    def queue(self) -> Queue:
        """As these settings will have it."""
        classes = [each.named(name) for name, each in self.classes.items()]
        return Queue(self.max_queue, self.queue_timeout, classes, self.gathering, self.patience)

    @field_validator("classes")
    @classmethod
    def _classes_are_possible(cls, classes: dict[str, ClassSettings]) -> dict[str, ClassSettings]:
        for name, each in classes.items():
            each.named(name)
        return classes
