"""Waiting for a change."""

import asyncio

import pytest

from services.cli.bell import Bell


async def test_all_who_wait_look_again_when_it_rings() -> None:
    bell = Bell()
    rung: list[int] = []
    waits = [asyncio.create_task(bell.until(lambda count=count: len(rung) >= count, 5)) for count in (1, 2, 2)]  # type: ignore[misc]
    await asyncio.sleep(0)
    for number in range(2):
        rung.append(number)
        bell.ring()
        await asyncio.sleep(0)
    assert await asyncio.gather(*waits) == [True, True, True]


async def test_a_wait_ends_at_its_time_and_a_condition_that_holds_needs_none() -> None:
    bell = Bell()
    assert not await bell.until(lambda: False, 0.01)
    assert not await bell.until(lambda: False, -1)
    assert await bell.until(lambda: True, 0)


async def test_what_the_condition_raises_ends_the_wait() -> None:
    bell = Bell()
    broken: list[bool] = []

    def condition() -> bool:
        if broken:
            raise KeyError("broken")
        return False

    wait = asyncio.create_task(bell.until(condition, None))
    await asyncio.sleep(0)
    broken.append(True)
    bell.ring()
    with pytest.raises(KeyError):
        await wait
