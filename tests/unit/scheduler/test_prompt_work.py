"""How busy prompts keep a pool, and whom one more of them holds up."""

from dataclasses import replace
from math import inf
from random import Random

import pytest

from services.core.ids import RequestId, RequestKey
from services.core.request import Request, Sampling, Stopping
from services.core.step_cost import StepCost
from services.scheduler.decision import Decision
from services.scheduler.prompt_work import MEMORY_SECONDS, MOST_BUSY, PromptWork
from tests.support.placing import asking, place
from tests.unit.scheduler.test_policy import view, worker


def steady(each: float, per_second: float) -> tuple[PromptWork, float]:
    """Prompts of `each` seconds, for ten minutes."""
    work = PromptWork()
    for number in range(int(600 * per_second)):
        work.note("prefill", each, number / per_second)
    return work, 600.0


def test_a_steady_stream_keeps_a_pool_as_busy_as_arithmetic_says() -> None:
    work, now = steady(0.5, 4.0)
    assert work.mean == pytest.approx(0.5)
    assert work.busy_share("prefill", 4, now) == pytest.approx(0.5, rel=0.02)
    assert work.busy_share("decode", 4, now) == 0.0
    assert work.busy_share("prefill", 4, now + 10 * MEMORY_SECONDS) < 0.001


def test_as_many_stand_behind_a_prompt_as_come_in_the_busy_period_that_it_lengthens() -> None:
    """Against a queue that is played through: one server, prompts of 1 s at random times, six in ten seconds."""
    work, now = steady(1.0, 0.6)
    foreseen = 5.0 * work.followers_per_second("prefill", 1, now)
    random, seen = Random(0), 0
    for _ in range(3000):
        at, idle_at, came = random.expovariate(0.6), 5.0, 0
        while at < idle_at:
            idle_at, came, at = idle_at + 1.0, came + 1, at + random.expovariate(0.6)
        seen += came
    assert foreseen == pytest.approx(seen / 3000, rel=0.05)


def test_a_pool_that_cannot_keep_up_has_no_end_of_followers_and_is_still_compared() -> None:
    work, now = steady(1.0, 3.0)
    assert work.followers_per_second("prefill", 1, now) == pytest.approx(MOST_BUSY / (1 - MOST_BUSY))
    assert PromptWork().followers_per_second("prefill", 0, 0.0) == 0.0


def test_a_prompt_goes_to_decode_once_those_behind_it_would_wait_for_longer_than_the_streams_beside_it() -> None:
    """The same queue before the same worker: what differs is whether others keep coming."""
    cost = StepCost(0.01, 0.001, 0.0)
    asked = Request(RequestKey(RequestId("new")), tuple(range(500)), Sampling(), Stopping(4))
    splits = []
    for rate in (0.0, 5.0):
        seen = view(
            worker("p", "prefill", cost=cost, waiting_tokens=2000, running=0, max_running=64),
            worker("d", cost=cost, running=6, max_running=16, context_tokens=600),
        )
        for number in range(int(60 * rate)):
            key = RequestKey(RequestId(f"r{number}"))
            decision = Decision(prefill="p:1", decode="d:1", prefill_seconds=0.15)
            seen.estimates.placed(replace(asked, key=key), decision, -60 + number / max(rate, 1))
            seen.estimates.over(key, -inf)
        seen.estimates.heard(seen.workers["p:1"], 0, 0.0)
        placement = place(asking(asked, seen))
        assert placement is not None
        splits.append(placement.is_split)
    assert splits == [True, False]
