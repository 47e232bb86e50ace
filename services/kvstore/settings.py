"""Settings of the kvstore."""

from pydantic import Field

from services.runtime.settings import ServiceSettings


class Settings(ServiceSettings):
    """`DIPTYCH_KVSTORE__*`."""

    capacity_blocks: int = Field(default=1024, ge=1)
    """Most blocks held. Their memory (capacity times the bytes of one block) is reserved when the first worker comes,
    and taken from the system as it is filled."""
