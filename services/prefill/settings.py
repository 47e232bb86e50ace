"""Settings of the prefill worker."""

from services.runtime.worker_settings import WorkerSettings


class Settings(WorkerSettings):
    """`DIPTYCH_PREFILL__*`."""
