"""Every cell of `docs/failures.md`: a request is struck in a stage of its way, and ends as the document says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest

from services.pb import inference_pb2, inference_pb2_grpc
from services.runtime import dial
from services.runtime.edge import rebuilt
from tests.faults.expected import Alone, Expected
from tests.faults.matrix.stages import ANSWER, PROMPT, STAGES, Progress, Thing
from tests.faults.matrix.strikes import HOLD_SECONDS, Struck, prepared
from tests.faults.matrix.table import Cell, cells
from tests.faults.proof import nothing_is_left
from tests.faults.trace import Asked
from tests.faults.traffic import request_of
from tests.support.asking import look

STAGE_SECONDS = 20.0
ANSWER_SECONDS = 30.0
DEADLINE_SECONDS = 2.5
LOST_ATTEMPTS = frozenset({"scheduler.lost_attempt", "lost.scheduler"})
"""Segments of a ledger that has more than one attempt."""

ASKED = Asked(tuple(3 + (7 * place) % 300 for place in range(PROMPT)), ANSWER)


@pytest.fixture(scope="session")
def right(alone: Alone) -> Expected:
    return alone.answer(ASKED)


def chosen(*, quick: bool) -> pytest.MarkDecorator:
    found = [cell for cell in cells() if cell.is_quick == quick]
    return pytest.mark.parametrize("cell", found, ids=[cell.name for cell in found])


@chosen(quick=True)
async def test_quick_cell(cell: Cell, right: Expected, tiny_model: Path, tmp_path: Path) -> None:
    await tried(cell, right, tiny_model, tmp_path)


@pytest.mark.matrix
@chosen(quick=False)
async def test_cell(cell: Cell, right: Expected, tiny_model: Path, tmp_path: Path) -> None:
    await tried(cell, right, tiny_model, tmp_path)


async def tried(cell: Cell, right: Expected, model: Path, directory: Path) -> None:
    async with prepared(cell, model, directory) as struck:
        client = Client(right)
        async with client.asking(struck, DEADLINE_SECONDS if cell.outcome == "told" else ANSWER_SECONDS) as answer:
            things = await until_reached(cell.stage, struck, client)
            await struck.by(cell.fault, things)
            if cell.outcome == "gone":
                answer.cancel()
            await asyncio.wait([answer])
        await struck.over(cell.fault)
        check(cell, client)
        if cell.outcome == "broken":
            again = Client(right)
            async with again.asking(struck, ANSWER_SECONDS) as answer:
                await answer
            assert again.is_whole, "the second answer"
        await nothing_is_left(struck.cluster)


async def until_reached(stage: str, struck: Struck, client: "Client") -> list[Thing]:
    """Returns what everybody holds once the request is in that stage."""
    async with asyncio.timeout(STAGE_SECONDS):
        while True:
            things = [Thing(each.name, held) for each in await look(struck.cluster) for held in each.held]
            of_requests = [thing for thing in things if thing.held.request_id]
            if STAGES[stage].is_reached(client.progress, of_requests):
                return of_requests
            assert not client.progress.is_over, f"the request ended by {client.end} before it was {stage}"


def check(cell: Cell, client: "Client") -> None:
    """That the client saw what the document says."""
    match cell.outcome:
        case "whole" | "resumed":
            assert client.is_whole, f"{client.end} after {len(client.progress.ids)} tokens"
            assert client.is_resumed == (cell.outcome == "resumed"), client.segments
        case "told":
            assert client.end == "DeadlinePassed" and client.is_beginning
            assert client.seconds < DEADLINE_SECONDS + HOLD_SECONDS
        case "gone":
            assert client.end == "left" and client.is_beginning
        case "broken":
            assert client.end not in ("stop", "length", "left") and client.is_beginning


class Client:
    """Asks once, and keeps what it saw."""

    def __init__(self, right: Expected) -> None:
        self.progress = Progress()
        self.end = ""
        self.seconds = 0.0
        self.segments: list[str] = []
        self._right = right

    @property
    def is_beginning(self) -> bool:
        return tuple(self.progress.ids) == self._right.ids[: len(self.progress.ids)]

    @property
    def is_whole(self) -> bool:
        return self.end == self._right.reason and tuple(self.progress.ids) == self._right.ids

    @property
    def is_resumed(self) -> bool:
        return bool(LOST_ATTEMPTS & set(self.segments))

    @asynccontextmanager
    async def asking(self, struck: Struck, patience: float) -> AsyncIterator["asyncio.Task[None]"]:
        async with dial.channel(struck.cluster.gateway.address) as channel:
            task = asyncio.create_task(self._ask(inference_pb2_grpc.InferenceStub(channel), patience))
            try:
                yield task
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _ask(self, stub: inference_pb2_grpc.InferenceStub, patience: float) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            async for message in stub.Generate(request_of(ASKED), timeout=patience):
                self.progress.ids.extend(message.token_ids)
                if message.HasField("done"):
                    self.end = "length" if message.done.finish_reason == inference_pb2.FINISH_REASON_LENGTH else "stop"
                    self.segments = [segment.name for segment in message.done.ledger]
        except grpc.aio.AioRpcError as error:
            self.end = rebuilt(error).reason
        except asyncio.CancelledError:
            self.end = "left"
            raise
        finally:
            self.seconds = loop.time() - begun
            self.progress.is_over = True
