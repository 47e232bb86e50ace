"""What an operator writes about a traffic class: table `[scheduler.classes.NAME]` of `diptych.toml`."""

from pydantic import BaseModel, ConfigDict, Field

from services.scheduler.classes import TrafficClass


class ClassSettings(BaseModel):
    """Every field has a value that limits nothing, so a class may be no more than a name and a level."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weight: float = Field(default=1.0, gt=0)
    """Its share of what is given out while several classes wait."""
    level: int = Field(default=0, ge=-8, le=8)
    """Importance: under overload the lowest gives way first."""
    max_queue: int = Field(default=0, ge=0)
    """Most requests of it that wait; 0: as many as wait in all."""
    max_running: float = Field(default=1.0, gt=0, le=1)
    """The share of the cluster's places that it may have at a time."""
    queue_timeout: float = Field(default=0.0, ge=0)
    """Seconds that a request of it may wait; 0: the scheduler's."""
    workers: tuple[str, ...] = ()
    """Names of the workers it may use, `*` for any characters; none: all."""
    shares: dict[str, float] = Field(default_factory=dict)
    """Weights of clients, by the digest the gateway makes of their key, where they are not 1."""
    max_ttft: float = Field(default=0.0, ge=0)
    """Seconds to the first token beyond which no more of it are taken; 0: no such bound."""
    max_itl: float = Field(default=0.0, ge=0)
    """Seconds between tokens beyond which no more of it are taken; 0: no such bound."""

    def named(self, name: str) -> TrafficClass:
        """ValueError if a share is not above 0."""
        return TrafficClass(name=name, **self.model_dump())
