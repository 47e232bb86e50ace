"""A local cluster fits into a machine with little shared memory."""

import pytest

from services.cli.arena_room import LEAST_BYTES, USUAL_BYTES, arena_bytes, free_bytes
from services.kvstore.settings import Settings

MIB = 1 << 20


def test_the_usual_is_what_a_store_takes_by_itself() -> None:
    assert Settings.model_fields["capacity_bytes"].default == USUAL_BYTES == arena_bytes(2, 8 << 30)


@pytest.mark.parametrize(("stores", "expected"), [(1, 48 * MIB), (2, 24 * MIB), (8, LEAST_BYTES)])
def test_stores_share_what_little_there_is(stores: int, expected: int) -> None:
    assert arena_bytes(stores, 64 * MIB) == expected


def test_the_machine_tells_what_is_free() -> None:
    assert free_bytes() > 0
