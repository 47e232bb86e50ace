"""What decides: waits, prefixes, fetches, the split and its margin, and places that nobody has reported yet."""

from dataclasses import replace

import pytest

from services.core.block_facts import Facts, Stock, short
from services.core.blocks import BlockNames
from services.core.ids import RequestId, RequestKey
from services.core.request import Request
from services.core.step_cost import StepCost
from services.scheduler.asking import Rules
from services.scheduler.cluster_view import ClusterView
from services.scheduler.policy import MARGIN_SECONDS
from services.scheduler.story import Placement
from tests.support.placing import asking, place
from tests.unit.scheduler.test_policy import FINGERPRINT, request, worker

FORMAT = "float16/kt1/b16/l30/h3x64"
"""23 kB a token."""
COST = StepCost(0.0, 0.001, 0.0)
"""A token takes a millisecond."""
ALWAYS = Rules("always")


def busy(name: str, service: str = "decode", **changes: object) -> object:
    return worker(name, service, **({"cost": COST, "format": FORMAT, "blocks_total": 1000} | changes))


def view(*workers: object) -> ClusterView:
    seen = ClusterView(kvstores={"k:1": "k"})
    for each in workers:
        seen.update(each, 0.0)
    return seen


def placed(seen: ClusterView, asked: Request, now: float = 0.0, rules: Rules = ALWAYS) -> Placement:
    """Placed and noted."""
    placement = place(asking(asked, seen, now=now, rules=rules), FINGERPRINT)
    assert placement is not None
    seen.placed_on(asked, placement.record, now, placement.hashes)
    return placement


def stored(seen: ClusterView, asked: Request, blocks: int) -> None:
    names = BlockNames(asked.salt).of(asked.tokens, bytes.fromhex(FINGERPRINT), 16)
    seen.prefixes.hear(Facts(Stock("k", "k:1", "life", FINGERPRINT, FORMAT), 1, tuple(map(short, names[:blocks]))))


def fresh(number: int, tokens: int = 100) -> Request:
    """A prompt like no other's."""
    return replace(request(f"r{number}", tokens), prompt=tuple(range(number * 1000, number * 1000 + tokens)))


def other(asked: Request, name: str) -> Request:
    """The same prompt again."""
    return replace(asked, key=RequestKey(RequestId(name)))


def terms(placement: Placement, role: str) -> dict[str, float]:
    [chosen] = [each for each in placement.record.chosen if each.role == role]
    return dict(chosen.terms)


def test_the_expected_first_token_is_wait_and_compute() -> None:
    placement = placed(view(busy("p", "prefill", waiting_tokens=200, waiting=1), busy("d")), request(prompt=100))
    found = terms(placement, "prefill")
    assert (found["wait"], found["transfer"], found["compute"]) == pytest.approx((0.2, 0.0, 0.1))
    assert placement.record.ttft == pytest.approx(0.3)


def test_places_that_no_worker_has_reported_count_and_pass_with_time() -> None:
    seen = view(busy("p1", "prefill"), busy("p2", "prefill"), busy("d", max_running=64))
    chosen = [placed(seen, fresh(number)).prefill for number in range(4)]
    assert sorted(chosen) == ["p1:1", "p1:1", "p2:1", "p2:1"]
    assert terms(placed(seen, fresh(9), now=0.15), "prefill")["wait"] == pytest.approx(0.05)


def test_a_first_token_that_comes_early_frees_its_worker() -> None:
    seen = view(busy("p", "prefill"), busy("d"))
    asked = request("a", 100)
    placed(seen, asked, now=1.0)
    seen.first_token(asked.key, 1.02)
    assert terms(placed(seen, fresh(7), now=1.02), "prefill")["wait"] == pytest.approx(0.0)


def test_a_cancelled_request_is_waited_for_no_more() -> None:
    seen = view(busy("p", "prefill"), busy("d"))
    asked = request("a", 100)
    placed(seen, asked)
    seen.over(asked.key, 0.0)
    assert terms(placed(seen, fresh(7)), "prefill")["wait"] == pytest.approx(0.0)


def test_a_workers_own_word_settles_what_was_expected_of_it() -> None:
    seen = view(busy("p", "prefill"), busy("d"))
    placed(seen, request("a", 100), now=1.0)
    seen.update(busy("p", "prefill", waiting_tokens=30, running=1), 1.1)
    assert terms(placed(seen, fresh(7), now=1.1), "prefill")["wait"] == pytest.approx(0.03)


def test_a_word_that_was_on_its_way_does_not_hide_a_place() -> None:
    seen = view(busy("p", "prefill"), busy("d"))
    placed(seen, request("a", 100), now=1.0)
    seen.update(busy("p", "prefill"), 1.01)
    assert terms(placed(seen, fresh(7), now=1.01), "prefill")["wait"] == pytest.approx(0.1)


def test_siblings_go_where_their_beginning_is_until_waiting_costs_more_than_computing() -> None:
    seen = view(busy("p1", "prefill", max_running=64), busy("p2", "prefill", max_running=64), busy("d", max_running=64))
    asked = request("a", 160)
    home = placed(seen, asked, now=0.0).prefill
    assert placed(seen, other(asked, "b"), now=0.16).prefill == home, "it is cached there and nobody waits"
    assert placed(seen, other(asked, "c"), now=0.17).prefill == home
    crowd = {placed(seen, other(asked, f"r{number}"), now=0.18).prefill for number in range(20)}
    assert crowd == {"p1:1", "p2:1"}, "a hot beginning spreads by itself"


@pytest.mark.parametrize(("per_token", "is_fetched"), [(0.001, True), (1e-6, False)])
def test_blocks_are_fetched_where_that_is_quicker_than_computing_them(per_token: float, is_fetched: bool) -> None:
    cost = StepCost(0.0, per_token, 0.0)
    seen = view(busy("p", "prefill", cost=cost), busy("d", cost=cost))
    asked = request(prompt=170)
    stored(seen, asked, 10)
    placement = placed(seen, asked)
    assert bool(placement.sources) == is_fetched
    assert placement.record.uncached_tokens == (10 if is_fetched else 170)
    assert (terms(placement, "prefill")["transfer"] > 0) == is_fetched
    assert "known k=10" in placement.why


def test_an_idle_decode_worker_prefills_when_the_prefill_workers_are_busy() -> None:
    auto = Rules()
    short_prompt = request("a", 40)
    for waiting, is_split in ((0, True), (10, True), (2000, False)):
        seen = view(busy("p", "prefill", waiting_tokens=waiting, waiting=1), busy("d"))
        assert placed(seen, short_prompt, rules=auto).is_split == is_split, waiting


def test_what_it_would_do_to_running_streams_speaks_against_it() -> None:
    seen = view(busy("p", "prefill", waiting_tokens=100, waiting=1), busy("d", running=3))
    placement = placed(seen, request("a", 400), rules=Rules())
    assert placement.is_split
    [local] = [each for each in placement.record.candidates if each.role == "local"]
    # 400 tokens; each step computes a token of every stream too, which takes as long without the prompt.
    assert dict(local.terms)["stall"] == pytest.approx(3 * 0.4)
    assert dict(local.terms)["compute"] > 0.4


def test_noise_within_the_margin_does_not_turn_a_decision() -> None:
    for tremble in range(-3, 4):
        cost = StepCost(0.0, 0.001 * (1 + tremble / 100), 0.0)
        seen = view(busy("p", "prefill"), busy("d", cost=cost))
        assert placed(seen, request("a", 100), rules=Rules()).is_split
    assert MARGIN_SECONDS > 0.03 * 0.1


def test_a_request_larger_than_any_prefill_worker_is_prefilled_where_it_fits() -> None:
    seen = view(busy("p", "prefill", blocks_total=4), busy("d"))
    placement = placed(seen, request("a", 100))
    assert (placement.is_split, placement.record.reason) == (False, "no prefill worker")


def test_a_worker_that_says_nothing_of_its_cost_is_taken_for_a_usual_one() -> None:
    seen = view(busy("p1", "prefill"), busy("p2", "prefill", cost=None), busy("d"))
    chosen = {placed(seen, fresh(number)).prefill for number in range(2)}
    assert chosen == {"p1:1", "p2:1"}


def test_a_worker_that_is_always_late_is_expected_to_be() -> None:
    seen = view(busy("p", "prefill"), busy("d", max_running=1000))
    for number in range(60):
        asked = fresh(number)
        placed(seen, asked, now=float(number))
        seen.first_token(asked.key, number + 0.2)
        seen.over(asked.key, number + 0.3, 10)
    assert placed(seen, fresh(99), now=100.0).record.ttft == pytest.approx(0.2, rel=0.1)


def test_decode_goes_where_the_answer_has_room() -> None:
    tight, roomy = busy("d1", blocks_used=995, running=1), busy("d2", blocks_used=500, running=1)
    assert placed(view(busy("p", "prefill"), tight, roomy), request("a", 200)).decode == "d2:1"


def test_a_class_keeps_to_its_workers() -> None:
    seen = view(busy("p", "prefill"), busy("d1"), busy("d2", running=3))
    only = Rules("always", may_use=lambda name: name in ("p", "d2"))
    assert placed(seen, request("a", 100), rules=only).decode == "d2:1"
    assert place(asking(request("b"), seen, rules=Rules(may_use=lambda name: False)), FINGERPRINT) is None
