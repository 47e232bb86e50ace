"""What a worker says it has still to do."""

from services.core.prefix_fetch import FetchCost, KnownPrefix
from services.core.request import Role
from services.core.workload import Workload
from tests.support.batches import Worker, key, request


def test_prompts_count_until_they_are_computed_and_are_ones_own_unless_a_copy_is_awaited() -> None:
    worker = Worker()
    worker.add(request("whole", range(10)), request("handed", range(20, 30), role=Role.DECODE))
    worker.batcher.add(request("known", range(40, 50)), 0.0, KnownPrefix(2, FetchCost(0.0, 0.1)))
    assert worker.batcher.workload == Workload(waiting_tokens=30, own_tokens=20, context_tokens=0)
    worker.step()
    assert worker.batcher.workload == Workload(waiting_tokens=20, own_tokens=0, context_tokens=31)
    worker.batcher.no_more(key("known"))
    assert worker.batcher.workload.own_tokens == 10
