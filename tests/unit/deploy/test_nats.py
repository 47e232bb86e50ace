"""The nats-server that chart and compose file start: a real one, with their arguments, file and variables."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil
import pytest
import yaml

from tests.support.chart import ROOT, render

COMPOSE = ROOT / "deploy" / "compose.yaml"
WRONG = "one-token-that-is-not-it"
REFUSED = "-ERR 'Authorization Violation'"
TOKENS = {
    "of letters": "abcdefghijklmnop",
    "of digits": "1234567890123456",
    "too large for an integer": "12345678901234567890123456789012",
    "a negative number": "-123456789012345",
    "a number of kilobytes": "123456789012345k",
    "like a date": "2020-01-01-00-00",
    "like an unfinished number": "-_abcdefghijklmn",
    "like hexadecimal digits": "0x12e4567890123456",
}


@dataclass(frozen=True)
class Launch:
    """What a container runtime is given: a command, one file where it is mounted, and variables."""

    command: list[str]
    mounted: PurePosixPath
    text: str
    environment: dict[str, str]


def chart_launch(token: str) -> Launch:
    """As a kubelet makes it of the chart: a variable sees those that stand before it."""
    documents = render()
    container = documents.container("nats")
    (volume,) = documents.pod("nats")["volumes"]
    (mount,) = container["volumeMounts"]
    config = documents.one("ConfigMap", "nats")
    assert (mount["name"], volume["configMap"]["name"]) == (volume["name"], config["metadata"]["name"])
    ((name, text),) = config["data"].items()
    environment: dict[str, str] = {}
    for variable in container["env"]:
        template = variable.get("value", token)
        environment[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], template)
    command = [*container["command"], *container["args"]]
    return Launch(command, PurePosixPath(mount["mountPath"], name), text, environment)


def compose_launch(token: str) -> Launch:
    """As Compose makes it of its file."""
    compose = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    service = compose["services"]["nats"]
    (config,) = service["configs"]
    text = (COMPOSE.parent / compose["configs"][config["source"]]["file"]).read_text(encoding="utf-8")
    environment = {name: value.replace("${DIPTYCH_TOKEN}", token) for name, value in service["environment"].items()}
    command = [*service["entrypoint"], *service["command"]]
    return Launch(command, PurePosixPath(config["target"]), text, environment)


@contextmanager
def serving(launch: Launch, directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The launch on free loopback ports, with its file in `directory`: the process and its host and port."""
    config = directory / launch.mounted.name
    config.write_text(launch.text, encoding="utf-8")
    here = {"0.0.0.0": "127.0.0.1", "4222": "-1", "8222": "-1", str(launch.mounted): str(config)}
    assert str(launch.mounted) in launch.command
    beside = str(Path(sys.executable).parent)
    program = shutil.which(launch.command[0], path=beside + os.pathsep + os.environ["PATH"])
    assert program is not None
    command = [program, *(here.get(argument, argument) for argument in launch.command[1:])]
    with subprocess.Popen(command, env=launch.environment, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            log: list[str] = []
            while not log or (log[-1] and "Server is ready" not in log[-1]):
                log.append(server.stderr.readline())
            address = re.search(r"client connections on (\S+)", "".join(log))
            assert address is not None, "".join(log)
            yield server, address[1]
        finally:
            server.kill()


def answer(address: str, **credentials: str) -> str:
    """What the server says to a client that introduces itself so and asks for a sign of life."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection, connection.makefile("rw") as lines:
        assert lines.readline().startswith("INFO ")
        lines.write(f"CONNECT {json.dumps({'verbose': False, **credentials})}\r\nPING\r\n")
        lines.flush()
        return lines.readline().strip()


@pytest.mark.parametrize("token", TOKENS.values(), ids=list(TOKENS))
@pytest.mark.parametrize("launch", [chart_launch, compose_launch])
def test_who_brings_the_token_connects_and_nobody_else(
    launch: Callable[[str], Launch], token: str, tmp_path: Path
) -> None:
    with serving(launch(token), tmp_path) as (_, address):
        assert answer(address, auth_token=token) == "PONG"
        assert answer(address, auth_token=WRONG) == REFUSED
        assert answer(address) == REFUSED


@pytest.mark.parametrize("launch", [chart_launch, compose_launch])
def test_whoever_lists_processes_or_reads_the_file_learns_no_token(
    launch: Callable[[str], Launch], tmp_path: Path
) -> None:
    token = TOKENS["of letters"]
    launched = launch(token)
    assert token not in launched.text
    with serving(launched, tmp_path) as (server, _):
        arguments = " ".join(psutil.Process(server.pid).cmdline())
    assert "nats-server" in arguments
    assert token not in arguments


@pytest.mark.parametrize("launch", [chart_launch, compose_launch])
def test_without_the_variable_the_server_does_not_start_open(launch: Callable[[str], Launch], tmp_path: Path) -> None:
    launched = launch(TOKENS["of letters"])
    launched.environment.clear()
    with pytest.raises(AssertionError, match="variable reference"), serving(launched, tmp_path):
        pass
