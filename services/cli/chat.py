"""`diptych chat`: a conversation with a running cluster, at a terminal or line by line from a pipe."""

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from services.cli.client import Answer, Gateway, chat_request, message
from services.cli.terminal import show_text
from services.core.errors import DiptychError
from services.pb import inference_pb2

# Importing it gives `input` a line editor; some builds of Python lack it.
with contextlib.suppress(ImportError):
    import readline  # noqa: F401

EXIT = "/exit"


@dataclass(slots=True)
class Conversation:
    """The messages so far; a turn that failed is not part of it."""

    max_tokens: int | None
    temperature: float
    messages: list[inference_pb2.ChatMessage] = field(default_factory=list)

    def request(self, said: str) -> inference_pb2.GenerateRequest:
        """Everything so far and the next turn."""
        return chat_request([*self.messages, message("user", said)], self.max_tokens, self.temperature)

    def keep(self, said: str, answered: str) -> None:
        """The turn is over."""
        self.messages += [message("user", said), message("assistant", answered)]


def chat(address: str, conversation: Conversation, console: Console) -> None:
    """Until /exit or the end of the input. Ctrl-C cuts an answer short. Raises DiptychError when read from a pipe.

    The prompt is read between two runs of the event loop, so that nothing but the main thread waits for a person.
    """
    is_interactive = sys.stdin.isatty()
    notes = console if is_interactive else Console(stderr=True)
    with asyncio.Runner() as runner:
        gateway = runner.run(_connected(address))
        try:
            for said in _turns(console, is_interactive):
                try:
                    answer = runner.run(gateway.ask(conversation.request(said), lambda text: show_text(console, text)))
                except KeyboardInterrupt:
                    console.print(Text("\ncut short; the turn is forgotten", style="dim"))
                except DiptychError as error:
                    if not is_interactive:
                        raise
                    console.print(Text(error.message, style="red"))
                else:
                    conversation.keep(said, answer.text)
                    console.print()
                    notes.print(Text(timing(answer), style="dim"))
        finally:
            runner.run(gateway.close())


def timing(answer: Answer) -> str:
    """How quick the answer was."""
    tokens = answer.done.usage.completion_tokens
    return f"first text {answer.first_text_seconds:.2f} s, {answer.tokens_per_second:.1f} tokens/s, {tokens} tokens"


def _turns(console: Console, is_interactive: bool) -> Iterator[str]:
    while True:
        try:
            said = (console.input("[bold]> [/bold]") if is_interactive else input()).strip()
        except EOFError:
            return
        if said == EXIT:
            return
        if said:
            yield said


async def _connected(address: str) -> Gateway:
    gateway = Gateway(address)
    try:
        await gateway.models()
    except DiptychError:
        await gateway.close()
        raise
    return gateway
