"""The simulated worker beside the real batch, and by itself where memory is short."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.core.batch_limits import BatchLimits
from services.core.request import Role
from services.core.step_cost import StepCost
from services.simulation.job import Job
from services.simulation.profile import WorkerModel
from services.simulation.worker import Drew, Ended, Happening, SimulatedWorker
from tests.support.batch_clock import Asked, batch_times

BLOCK = 4
COSTS = st.builds(
    StepCost,
    fixed=st.sampled_from((0.01, 0.1)),
    per_token=st.sampled_from((0.001, 0.01)),
    per_token_context=st.sampled_from((0.0, 1e-4)),
    per_context=st.sampled_from((0.0, 1e-3)),
)
STEMS = ((1,) * 40, (2,) * 40, (1,) * 10 + (3,) * 30)
REQUESTS = st.lists(
    st.builds(
        lambda ticks, stem, length, answer: (ticks, STEMS[stem][:length], answer),
        ticks=st.integers(0, 60),
        stem=st.integers(0, 2),
        length=st.integers(1, 40),
        answer=st.integers(1, 30),
    ),
    min_size=1,
    max_size=10,
)


def asked(found: Sequence[tuple[int, tuple[int, ...], int]]) -> list[Asked]:
    """Never at the very moment a step ends: what happens first then is nobody's to say."""
    return [
        Asked(ticks * 0.0713 + 1e-5 * at, prompt, answer) for at, (ticks, prompt, answer) in enumerate(sorted(found))
    ]


def names_of(prompt: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(hash(prompt[: end * BLOCK]) for end in range(1, len(prompt) // BLOCK + 1))


def times_of(worker: SimulatedWorker, requests: Sequence[Asked], check: bool = False) -> list[tuple[float, float]]:
    """(first token, last token) of each."""
    coming = [
        (each.at, Job(number, Role.WHOLE, len(each.prompt), each.answer, names_of(each.prompt)))
        for number, each in enumerate(requests)
    ]
    first: dict[int, float] = {}
    last: dict[int, float] = {}

    def note(happened: list[Happening], now: float) -> None:
        for each in happened:
            if isinstance(each, Drew):
                assert each.job.number not in first, "a first token twice"
                first[each.job.number] = now
            elif isinstance(each, Ended):
                assert each.job.number not in last, "an end twice"
                last[each.job.number] = now

    while coming or worker.due is not None:
        if coming and (worker.due is None or coming[0][0] <= worker.due):
            at, job = coming.pop(0)
            note(worker.add(job, at), at)
        else:
            now = worker.due
            assert now is not None
            note(worker.finish_step(), now)
        if check:
            worker.check_invariants()
    return [(first[number], last[number]) for number in range(len(requests))]


@settings(max_examples=40, deadline=None)
@given(COSTS, REQUESTS, st.integers(1, 6), st.sampled_from((0.05, 0.2, 1.0)))
def test_it_takes_as_long_as_the_real_batch(
    cost: StepCost, found: list[tuple[int, tuple[int, ...], int]], max_running: int, step_seconds: float
) -> None:
    requests = asked(found)
    limits = BatchLimits(BLOCK, 400, max_running, 100, 1000, step_seconds, cost, watermark_blocks=0, even_chunks=True)
    worker = SimulatedWorker("w", WorkerModel(cost, 400, max_running, step_seconds), BLOCK)
    for simulated, real in zip(times_of(worker, requests), batch_times(limits, requests), strict=True):
        assert simulated == pytest.approx(real, rel=1e-9, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(COSTS, REQUESTS, st.integers(18, 40), st.integers(0, 3), st.integers(1, 6))
def test_where_memory_is_short_runs_of_steps_are_as_steps_one_by_one(
    cost: StepCost, found: list[tuple[int, tuple[int, ...], int]], blocks: int, watermark: int, max_running: int
) -> None:
    requests = asked(found)
    model = WorkerModel(cost, blocks, max_running, 0.2, watermark)
    quick, slow = SimulatedWorker("w", model, BLOCK), SimulatedWorker("w", model, BLOCK)
    slow.longest_run = 1
    for one, other in zip(times_of(quick, requests, check=True), times_of(slow, requests, check=True), strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-9)


def test_gaps_longer_than_a_limit_are_counted_without_a_look_at_each() -> None:
    cost = StepCost(0.1, 0.0, 0.0, 0.01)
    worker = SimulatedWorker("w", WorkerModel(cost, 100, 4, 10.0), BLOCK, limits=(0.135, 0.205))
    job = Job(0, Role.WHOLE, 1, 20)
    times_of_one = [worker.add(job, 0.0)]
    while worker.due is not None:
        times_of_one.append(worker.finish_step())
    steps, long = worker.gaps.counts
    began, long_then = job.pace_at_first
    # Step k reads k positions and takes 0.1 + 0.01 k: the first token comes with k = 1, the others with 2 to 20.
    assert steps - began == 19
    assert [end - then for end, then in zip(long, long_then, strict=True)] == [17, 10]
