"""`diptych scale`: asks the process of `diptych up` for other pool sizes, and shows what becomes of each process."""

import time

from rich.console import Console
from rich.text import Text

from services.cli.control import asked
from services.cli.record import ClusterRecord

_BEGUN = ("starting", "stopping")


async def scale(record: ClusterRecord, wish: dict[str, int], console: Console) -> None:
    """A line for each process that is ready or has stopped. If this is cancelled, the cluster goes on with it."""
    begun: dict[str, float] = {}

    def tell(name: str, state: str) -> None:
        if state in _BEGUN:
            begun[name] = time.monotonic()
        else:
            seconds = time.monotonic() - begun.get(name, time.monotonic())
            console.print(Text(f"{name} {state} after {seconds:.1f} s"), soft_wrap=True)

    await asked(record.control, record.token, wish, tell)
