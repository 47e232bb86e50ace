"""One child process of the local cluster: its log, its life, its end.

Each child leads a process group of its own, so that Ctrl-C at the terminal reaches only the supervisor, which then ends
the children in order. All children hold the read end of one pipe as standard input; it ends with the supervisor.
"""

import asyncio
import contextlib
import json
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TAIL_LINES = 12
TAIL_BYTES = 16384
MAX_LINE_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run."""

    service: str
    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    processors: tuple[int, ...] = ()
    """Those it may run on; none leaves it all."""


class Child:
    """A started process. Made by `start`; every started child is waited for by `stop` or `kill_and_wait`."""

    def __init__(self, spec: ChildSpec, process: Process, ended: Callable[[], None]) -> None:
        self.spec = spec
        self._process = process
        self._ending = asyncio.create_task(process.wait(), name=f"wait-{spec.name}")
        self._ending.add_done_callback(lambda _: ended())

    @classmethod
    async def start(cls, spec: ChildSpec, lifeline: int, ended: Callable[[], None]) -> "Child":
        """Starts the process with the descriptor `lifeline` as standard input; `ended` is called when it has ended."""
        log = _open_log(spec.log)
        try:
            process = await asyncio.create_subprocess_exec(
                *spec.command,
                stdin=lifeline,
                stdout=log,
                stderr=log,
                env=dict(spec.environment),
                start_new_session=True,
            )
        finally:
            os.close(log)
        if spec.processors:
            # Before it has had time to start a thread; those inherit it. It may have ended already.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, spec.processors)
        return cls(spec, process, ended)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it lives; negative for the signal that ended it."""
        return self._process.returncode

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    def tail(self) -> str:
        """The end of its log, for people."""
        return log_tail(self.spec.log)

    def obituary(self) -> str:
        """How it ended, with its last words."""
        code = self.exit_code or 0
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"{self.spec.name} {how}; the end of its log:\n{self.tail()}"

    def terminate(self) -> None:
        """Asks it to drain and end; a paused one is resumed so that it can."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends it at once, as a crash would."""
        self._signal(signal.SIGKILL)

    def pause(self) -> None:
        """Stops it where it stands, as a hang would."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        return await asyncio.shield(self._ending)

    async def ends_within(self, seconds: float) -> bool:
        """True as soon as it has ended, False if it lives on after `seconds`."""
        ended, _ = await asyncio.wait([self._ending], timeout=seconds)
        return bool(ended)

    async def stop(self, grace_seconds: float) -> None:
        """Asks it to end and kills it if it has not after `grace_seconds`; also when this wait is cancelled."""
        self.terminate()
        try:
            await self.ends_within(grace_seconds)
        finally:
            await self.kill_and_wait()

    async def kill_and_wait(self) -> None:
        self.kill()
        await self.wait()

    def _signal(self, number: signal.Signals) -> None:
        """To its whole group. Only while it is not yet waited for, so that the number cannot be somebody else's."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)


@contextmanager
def lifeline_pipe() -> Iterator[int]:
    """The read end of a pipe that ends when this block is left, or this process is no more."""
    read_end, write_end = os.pipe()
    try:
        yield read_end
    finally:
        os.close(read_end)
        os.close(write_end)


def log_tail(path: Path) -> str:
    """The last lines of a log of JSON lines and whatever else a process printed."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    shown = [_readable(line) for line in text.splitlines()[-TAIL_LINES:]]
    return "\n".join("\n".join(shown).splitlines()[-2 * TAIL_LINES :])


def _readable(line: str) -> str:
    try:
        entry = json.loads(line)
        parts = [f"{entry['level']} {entry['message']}", entry.get("exception", "")]
    except (ValueError, TypeError, KeyError):
        return line[:MAX_LINE_CHARACTERS]
    return "\n".join(part for part in parts if part)


def _open_log(path: Path) -> int:
    """Appending, so that a restarted child's log goes on below that of its former life."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
