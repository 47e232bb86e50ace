"""Errors as sentences instead of tracebacks, for every command."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.text import Text

from services.cli.errors import CommandError
from services.core.errors import DiptychError
from services.modelfiles.errors import ModelError

INTERRUPTED = 130


@contextmanager
def plainly() -> Iterator[None]:
    """Errors a person can do something about end the command with their sentence; anything else is a traceback."""
    try:
        yield
    except (CommandError, ModelError, DiptychError) as error:
        Console(stderr=True).print(Text(str(error), style="red"), soft_wrap=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
