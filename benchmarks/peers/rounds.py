"""Who runs what when. Pure, and only the standard library."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from peers.workloads import Workload


@dataclass(frozen=True, slots=True)
class Turn:
    """One contender's run of one workload, while all others are idle."""

    repetition: int
    workload: Workload
    contender: str


def rounds(contenders: Sequence[str], workloads: Sequence[Workload], repetitions: int) -> Iterator[Turn]:
    """For each repetition and workload every contender once, so that a slow minute of the machine hits all alike.

    Each repetition begins with another contender: whoever follows the heaviest one is not always the same.
    """
    for repetition in range(repetitions):
        first = repetition % len(contenders)
        for workload in workloads:
            for contender in (*contenders[first:], *contenders[:first]):
                yield Turn(repetition, workload, contender)
