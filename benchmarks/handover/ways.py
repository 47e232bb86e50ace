"""Both ways from a prefill worker over a store to a decode worker, each in a process of its own."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from handover.ends import End, end
from handover.shapes import Shape
from services.kvstore.arena import ALIGNMENT


@dataclass(slots=True)
class Ways:
    """A writer and a reader with a store between them."""

    writer: End
    reader: End
    rounds: int = 0

    async def move(self, way: str) -> dict[str, float]:
        """Seconds of a put and of a get of blocks that the store has never seen. Raises TransferFailed."""
        self.rounds += 1
        order = {"way": way, "round": self.rounds}
        await self.reader.ask(do="claim", **order)
        put = await self.writer.ask(do="put", **order)
        get = await self.reader.ask(do="get", **order)
        return {f"{way}_put": put["seconds"], f"{way}_get": get["seconds"]}

    async def check(self) -> None:
        """Raises TransferFailed unless what has come is what was put."""
        await self.reader.ask(do="check", way="", round=0)


@asynccontextmanager
async def ways(shape: Shape, address: str, logs: Path) -> AsyncIterator[Ways]:
    """Through one store at `address` that has room for two prompts: one may be on its way out."""
    page = -(-shape.format.block_bytes // ALIGNMENT) * ALIGNMENT
    settings = {"LISTEN": address, "CAPACITY_BYTES": str(2 * shape.blocks * page), "EXIT_WITH_PARENT": "true"}
    environment = {f"DIPTYCH_KVSTORE__{name}": text for name, text in settings.items()}
    arguments = [address, str(shape.format), str(shape.blocks)]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(end("services.kvstore", [], logs / "kvstore.log", environment))
        writer = await stack.enter_async_context(end("handover.worker_end", arguments, logs / "writer.log"))
        reader = await stack.enter_async_context(end("handover.worker_end", arguments, logs / "reader.log"))
        await writer.answer()
        await reader.answer()
        yield Ways(writer, reader)
