"""Where a process's resident bytes are."""

from services.core.memory import EngineMemory, ProcessMemory, Resident

ENGINE = EngineMemory(weights_mapped=100, weights_private=10, kv=20, kv_reserved=500, step=5, device=1000)


def test_the_rest_is_what_the_engine_does_not_have_of_files_and_of_other_pages() -> None:
    found = ProcessMemory.of(ENGINE, Resident(total=330, files=180, shared=30, anonymous=120))
    assert (found.code, found.heap, found.arena) == (80, 85, 30)
    assert found.parts == found.resident == 330


def test_what_is_reserved_or_on_a_gpu_is_no_part() -> None:
    assert ProcessMemory.of(EngineMemory(kv_reserved=7, device=9), Resident(3, 1, 0, 2)).parts == 3


def test_an_engine_that_claims_too_much_shows_as_a_sum_that_is_too_large() -> None:
    assert ProcessMemory.of(ENGINE, Resident(total=60, files=40, shared=0, anonymous=20)).parts == 135


def test_pages_that_came_between_the_two_counts_show_as_a_difference() -> None:
    found = ProcessMemory.of(EngineMemory(), Resident(total=310, files=180, shared=0, anonymous=120))
    assert found.parts == 300
