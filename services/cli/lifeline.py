"""Runs a program that does not watch its parent (nats-server), and ends it when standard input ends.

Standard library only: it is started by its path in an isolated interpreter, so that it is up in a few milliseconds.
Usage: python lifeline.py PROGRAM ARGUMENT...
"""

import os
import signal
import subprocess
import sys
import threading

GRACE_SECONDS = 3.0


def main(command: list[str]) -> int:
    """The program's exit code; 128 + the signal's number if one ended it."""
    # The whole process group is told to end, so the program hears it too; this process only has to outlive it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_with_input, args=(program,), daemon=True).start()
    code = program.wait()
    return code if code >= 0 else 128 - code


def _end_with_input(program: subprocess.Popen[bytes]) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    program.terminate()
    try:
        program.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        program.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
