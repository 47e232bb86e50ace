"""Settings of the decode worker."""

from services.runtime.worker_settings import WorkerSettings


class Settings(WorkerSettings):
    """`DIPTYCH_DECODE__*`."""
