"""Settings of the kvstore."""

from pathlib import Path

from pydantic import Field

from services.runtime.arena_file import DIRECTORY
from services.runtime.settings import ServiceSettings


class Settings(ServiceSettings):
    """`DIPTYCH_KVSTORE__*`."""

    capacity_bytes: int = Field(default=384 << 20, ge=1 << 12)
    """Of the arena, the memory that blocks are in; taken from the system at the start."""
    arena_directory: Path = DIRECTORY
    """Where the arena's file is. Workers that see the same directory copy straight into and out of it."""
