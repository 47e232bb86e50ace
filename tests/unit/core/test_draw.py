from hypothesis import given
from hypothesis import strategies as st

from services.core.draw import uniform

U64 = st.integers(0, 2**64 - 1)


def test_draws_are_the_same_in_every_process_and_version() -> None:
    golden = {
        (0, 0): 0.798240583215436,
        (0, 1): 0.5048047559026215,
        (1, 0): 0.5935311260583236,
        (42, 1500): 0.37742486802869724,
        (18446744073709551615, 1048576): 0.7764559847033577,
    }
    assert {at: uniform(*at) for at in golden} == golden


@given(U64, U64)
def test_a_draw_is_a_multiple_of_two_to_the_minus_53_below_one(seed: int, position: int) -> None:
    drawn = uniform(seed, position)
    assert 0.0 <= drawn < 1.0
    assert (drawn * 2**53).is_integer()


def test_a_signed_seed_is_the_unsigned_one_of_the_same_bits() -> None:
    assert uniform(-1, 5) == uniform(2**64 - 1, 5)


def test_draws_fill_the_interval_evenly_along_positions_and_along_seeds() -> None:
    for draws in ([uniform(7, n) for n in range(4000)], [uniform(n, 7) for n in range(4000)]):
        counts = [sum(1 for drawn in draws if int(drawn * 10) == tenth) for tenth in range(10)]
        assert all(320 < count < 480 for count in counts)
        assert len(set(draws)) == len(draws)
