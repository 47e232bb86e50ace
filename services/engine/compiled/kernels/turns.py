"""A thread's way through the phases of a step: which pieces it takes, and when it may go on.

Each thread has a run of neighbouring pieces of its own, so that it reads memory in order and knows what it will read
next; when its run is done it takes what others have not got to.
"""

from typing import NamedTuple

import numpy as np

from services.engine.compiled.kernels.team import COUNTER, finish, take, ticks
from services.engine.jit import inner

PHASES = ("norm", "linear", "heads", "attention", "head", "wait")
NORM, LINEAR, HEADS, ATTENTION, HEAD, WAIT = range(len(PHASES))


class Team(NamedTuple):
    """What the threads of a step share."""

    size: int
    counters: np.ndarray
    """`[phases, 1 + threads, COUNTER]`, 0 before the step: pieces done, then pieces taken of each thread's run."""
    ticks: np.ndarray
    """`[threads, PHASES]`, added to."""


class Turn(NamedTuple):
    """One thread in one phase."""

    counter: int
    """Address of the phase's counters."""
    thread: int
    members: int
    phase: int
    since: int


@inner
def begin(team, thread, number, phase):
    """Of the phase whose counters are the step's `number`-th."""
    address = np.int64(team.counters.ctypes.data) + np.int64(8 * COUNTER * (team.size + 1) * number)
    return Turn(address, np.int64(thread), np.int64(team.size), np.int64(phase), ticks())


@inner
def claim(turn, total):
    """A piece that nobody has taken, or `total` if there is none left."""
    for offset in range(turn.members):
        owner = (turn.thread + offset) % turn.members
        piece = owner * total // turn.members + take(turn.counter + 8 * COUNTER * (1 + owner))
        if piece < (owner + 1) * total // turn.members:
            return piece
    return total


@inner
def end(team, turn, mine, total):
    """The thread has done `mine` of the phase's `total` pieces and waits for the rest; both are counted as time."""
    done = ticks()
    team.ticks[turn.thread, turn.phase] += done - turn.since
    if turn.members > 1:
        finish(turn.counter, np.int64(mine), np.int64(total))
        team.ticks[turn.thread, WAIT] += ticks() - done
