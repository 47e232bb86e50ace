"""What a worker says of its load, as the scheduler understands it."""

from dataclasses import replace

from services.core.errors import DiptychError
from services.core.plan import StepPlan, StepResult
from services.core.request import Role
from services.core.step_cost import StepCost
from services.pb import operations_pb2
from services.runtime.faults import Faults
from services.runtime.metrics import Metrics
from services.runtime.step_loop import StepLoop
from services.scheduler.workers import status_of
from tests.support.batches import LIMITS, Worker, request


class NoEngine:
    def execute(self, plan: StepPlan) -> StepResult:
        raise DiptychError("nothing is computed here")


def said_by(worker: Worker) -> operations_pb2.Announcement:
    loop = StepLoop(worker.batcher, NoEngine(), Metrics("decode"), Faults({}), seam="decode.step")
    return operations_pb2.Announcement(address="d:1", service="decode", load=loop.load())


def test_costs_and_sizes_arrive_as_the_worker_has_them() -> None:
    cost = StepCost(0.001, 0.002, 0.003, 0.004)
    worker = Worker(replace(LIMITS, cost=cost, step_seconds=0.25, max_context=77))
    status = status_of(said_by(worker))
    assert (status.cost, status.step_seconds, status.max_context) == (cost, 0.25, 77)
    assert status.block_size == LIMITS.block_size


def test_a_worker_of_an_earlier_version_has_no_cost() -> None:
    assert status_of(operations_pb2.Announcement(service="decode")).cost is None


def test_a_prompt_that_comes_from_elsewhere_is_no_work_of_its_own() -> None:
    worker = Worker()
    worker.add(request("own", range(10)), request("handed", range(20, 28), role=Role.DECODE))
    status = status_of(said_by(worker))
    assert (status.waiting_tokens, status.own_tokens, status.context_tokens) == (18, 10, 0)
    worker.admit()
    assert status_of(said_by(worker)).context_tokens == 18
