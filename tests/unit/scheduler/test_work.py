"""What a request is charged: what must be computed, and what its client's answers have been like."""

from dataclasses import replace

from services.core.ids import RequestId, RequestKey
from services.core.request import Request, Sampling, Stopping
from services.scheduler.work import ANSWER_WEIGHT, Expected, work_of

REQUEST = Request(RequestKey(RequestId("r")), tuple(range(100)), Sampling(), Stopping(1000), client="a")


def test_a_client_that_is_not_known_is_taken_at_its_word() -> None:
    assert work_of(REQUEST, 0, Expected()) == 100 + ANSWER_WEIGHT * 1000


def test_what_is_cached_is_not_charged_and_answers_are_expected_to_be_like_those_before() -> None:
    expected = Expected()
    expected.ended("a", 20)
    assert work_of(REQUEST, 64, expected) == 36 + ANSWER_WEIGHT * 20
    assert work_of(replace(REQUEST, client="b"), 64, expected) == 36 + ANSWER_WEIGHT * 1000
    assert work_of(replace(REQUEST, stopping=Stopping(5)), 100, expected) == ANSWER_WEIGHT * 5


def test_the_expectation_follows_what_comes_and_is_bounded_in_clients() -> None:
    expected = Expected()
    for _ in range(60):
        expected.ended("a", 40)
    assert abs(expected.answer(REQUEST) - 40) < 1
    for number in range(5000):
        expected.ended(f"other {number}", 1)
    assert expected.answer(REQUEST) == 1000
