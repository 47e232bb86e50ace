"""The first signal asks a process to drain, the second not to wait any longer."""

import asyncio
import os
import signal

from services.runtime.process import Process, _live
from services.runtime.settings import ServiceSettings


def test_a_second_signal_hurries_and_the_first_does_not() -> None:
    seen: list[bool] = []

    async def main(process: Process[ServiceSettings]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(process.stopping.wait(), 5)
        seen.append(process.hurrying.is_set())
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(process.hurrying.wait(), 5)
        seen.append(True)

    asyncio.run(_live("decode", ServiceSettings(metrics_port=None), main))
    assert seen == [False, True]
