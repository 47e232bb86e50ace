"""What is planted is done: waits, rates, lost and changed things, and the end of the process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from services.core.fault_plan import NOTHING, Deed, corrupted
from services.runtime.faults import Faults

DOOMED = """
import sys
from services.runtime.faults import Faults
faults = Faults({"store.step": {sys.argv[1]: 1, "after": 1}})
for _ in range(2):
    faults.at("store.step")
    print("passed", flush=True)
"""


@contextmanager
def doomed(kind: str) -> Iterator["subprocess.Popen[str]"]:
    """A process to which `kind` happens at its second passage."""
    with subprocess.Popen([sys.executable, "-c", DOOMED, kind], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_process_that_is_to_die_dies_at_once() -> None:
    with doomed("die") as process:
        out, _ = process.communicate(timeout=30)
        assert (out, process.returncode) == ("passed\n", -signal.SIGKILL)


def test_a_process_that_is_to_pause_stands_still_until_it_is_resumed() -> None:
    with doomed("pause") as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status) and process.stdout and process.stdout.readline() == "passed\n"
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=30)
        assert (out, process.returncode) == ("passed\n", 0)


async def test_a_delay_is_waited_out_and_every_deed_is_told() -> None:
    struck: list[str] = []
    faults = Faults({"kv.put": 0.05, "kv.out": {"delay": 0.05, "corrupt": 1, "every": 2}}, struck.append)
    begun = time.monotonic()
    assert await faults.wait("kv.put") == Deed(delay=0.05)
    assert faults.stall("kv.out") == Deed(delay=0.05, corrupt=True)
    assert faults.stall("kv.out") is faults.at("kv.in") is NOTHING
    assert time.monotonic() - begun >= 0.1
    assert struck == ["kv.put", "kv.out"]


async def test_a_throttled_link_takes_as_long_as_its_rate_says() -> None:
    faults = Faults({"kv.get": {"throttle": 1000}})
    begun = time.monotonic()
    await faults.throttle("kv.put", 10**9)
    await faults.throttle("kv.get", 50)
    faults.throttle_thread("kv.get", 50)
    assert time.monotonic() - begun >= 0.1


@pytest.mark.parametrize(
    ("plant", "arrived"),
    [
        ({}, [b"a", b"b", b"c"]),
        ({"drop": 1, "after": 1, "times": 1}, [b"a", b"c"]),
        ({"duplicate": 1, "times": 1}, [b"a", b"a", b"b", b"c"]),
        ({"reorder": 1, "times": 1}, [b"b", b"a", b"c"]),
        ({"reorder": 5, "times": 1}, [b"b", b"c", b"a"]),
        ({"corrupt": 1, "after": 2}, [b"a", b"b", corrupted(b"c")]),
    ],
)
async def test_a_stream_arrives_as_planted(plant: dict[str, float], arrived: list[bytes]) -> None:
    passage = Faults({"kv.part": plant}).passage("kv.part", corrupted)
    got = [each for part in (b"a", b"b", b"c") for each in await passage.through(part)]
    assert got + passage.rest() == arrived
