"""The command line's side of the public API: one answer, streamed and timed."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from services.core.errors import InternalError, InvalidRequest, WorkerLost
from services.core.ledger import Segment
from services.pb import inference_pb2, inference_pb2_grpc
from services.runtime import dial
from services.runtime.edge import remote_errors


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer and what the client's own stopwatch says of it."""

    text: str
    done: inference_pb2.Done
    first_text_seconds: float
    """From the call to the first text; the whole time if no text came."""
    seconds: float
    """From the call to the last message."""

    @property
    def ledger(self) -> list[Segment]:
        """Where the time went, as the gateway accounts for it."""
        return [Segment(segment.name, segment.seconds) for segment in self.done.ledger]

    @property
    def tokens_per_second(self) -> float:
        """Of the tokens after the first; 0 if there are none."""
        later = self.done.usage.completion_tokens - 1
        spent = self.seconds - self.first_text_seconds
        return later / spent if later > 0 and spent > 0 else 0.0


class Gateway:
    """A connection to one gateway; the first call connects. Made inside the event loop; an async context manager."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = dial.channel(address)
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close()

    async def warm_up(self) -> None:
        """Pays what only the first calls of either kind cost (some milliseconds), so that no stopwatch counts it."""
        await self.models()
        with contextlib.suppress(InvalidRequest):
            await self.ask(inference_pb2.GenerateRequest(chat=inference_pb2.Chat()), lambda _: None)

    async def models(self) -> list[inference_pb2.Model]:
        """What it serves."""
        try:
            with remote_errors():
                reply = await self._stub.ListModels(inference_pb2.ListModelsRequest())
        except WorkerLost:
            raise WorkerLost(f"no gateway answers at {self._address}") from None
        return list(reply.models)

    async def ask(
        self, request: inference_pb2.GenerateRequest, show: Callable[[str], None], timeout: float | None = None
    ) -> Answer:
        """Streams an answer; `show` gets the text as it comes. Raises the DiptychError that the gateway answers."""
        pieces: list[str] = []
        first = None
        begun = time.perf_counter()
        with remote_errors():
            async for message in self._stub.Generate(request, timeout=timeout):
                now = time.perf_counter() - begun
                if message.text:
                    first = now if first is None else first
                    pieces.append(message.text)
                    show(message.text)
                if message.HasField("done"):
                    return Answer("".join(pieces), message.done, now if first is None else first, now)
        raise InternalError("the answer ended without its last message")


def message(role: str, content: str) -> inference_pb2.ChatMessage:
    """What the terminal could not decode becomes a question mark, for messages are UTF-8."""
    return inference_pb2.ChatMessage(role=role, content=content.encode("utf-8", "replace").decode())


def chat_request(
    messages: list[inference_pb2.ChatMessage], max_tokens: int | None, temperature: float
) -> inference_pb2.GenerateRequest:
    """A chat with the only model there is."""
    request = inference_pb2.GenerateRequest(chat=inference_pb2.Chat(messages=messages))
    request.sampling.temperature = temperature
    if max_tokens is not None:
        request.stopping.max_tokens = max_tokens
    return request
