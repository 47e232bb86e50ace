"""Several answers to one prompt, as requests."""

from services.core.draw import choice_seed
from services.core.ids import RequestId, RequestKey
from services.core.request import Request, Sampling, Stopping

REQUEST = Request(RequestKey(RequestId("r"), 2), (1, 2), Sampling(seed=-5, top_k=3), Stopping(4))


def test_the_first_answer_is_the_request_itself() -> None:
    assert REQUEST.choice(0) is REQUEST


def test_the_others_differ_in_their_id_and_their_seed_alone() -> None:
    other = REQUEST.choice(3)
    assert other.key == RequestKey(RequestId("r.3"), 2)
    assert other.sampling == Sampling(seed=choice_seed(-5, 3), top_k=3)
    assert (other.prompt, other.stopping) == (REQUEST.prompt, REQUEST.stopping)


def test_seeds_of_answers_are_the_same_in_every_process_and_version() -> None:
    assert choice_seed(4, 1) == 8379127847730077663
    assert choice_seed(-1, 1) == choice_seed(2**64 - 1, 1)


def test_seeds_of_answers_are_all_different_and_fit_the_wire() -> None:
    seeds = [choice_seed(seed, index) for seed in range(50) for index in range(1, 20)]
    assert len(set(seeds)) == len(seeds)
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)
