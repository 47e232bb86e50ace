"""Settings of the gateway: `DIPTYCH_GATEWAY__<FIELD>`."""

from pathlib import Path

from pydantic import Field

from services.runtime.settings import ServiceSettings


class Settings(ServiceSettings):
    listen: str = "127.0.0.1:50051"
    """Address of the public gRPC API."""
    http_listen: str = "127.0.0.1:8000"
    """Address of the OpenAI API; port 0 takes a free one."""
    model: Path
    """A prepared model directory."""
    schedulers: tuple[str, ...] = ()
    """Addresses of schedulers that need not announce themselves."""
    max_requests: int = Field(default=512, ge=1)
    """Requests in progress at once; more are refused."""
    max_requests_per_key: int = Field(default=0, ge=0)
    """Requests in progress at once with the same API key; more are refused. 0: as many as there may be in all."""
    service_tiers: dict[str, str] = Field(default_factory=dict)
    """Traffic class by the `service_tier` that a request asks for; others are refused."""
    key_classes: dict[str, str] = Field(default_factory=dict)
    """Traffic class by API key, as `printf %s KEY | sha256sum | cut -c1-16` prints it; it outranks the tier."""
    max_body_bytes: int = Field(default=1 << 20, ge=1024)
    """Largest HTTP body. Parsing one holds up every other request for as long as it takes, so it is no larger than a
    long context needs."""
    body_seconds: float = Field(default=30.0, gt=0)
    """An HTTP body that is not here in this time is not waited for."""
    max_messages: int = Field(default=1024, ge=1)
    """Most messages of one chat."""
    max_stops: int = Field(default=16, ge=0)
    """Most stop strings of one request."""
    max_answers: int = Field(default=16, ge=1)
    """Most answers to one prompt (`n`)."""
    slow_client_seconds: float = Field(default=30.0, gt=0)
    """A client that does not read for so long is cut."""
    max_attempts: int = Field(default=3, ge=1)
    """Schedulers that may be lost, one after the other, while they hold a request."""
    scheduler_wait: float = Field(default=5.0, ge=0)
    """Seconds for which a request that finds no scheduler waits for one, at its beginning and whenever it lost one."""
    remembered_requests: int = Field(default=1024, ge=0)
    """Finished requests that GetRequest can tell of."""
