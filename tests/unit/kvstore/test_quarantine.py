"""When pages of lost writers are free again: never before every session up to then has let go of its slot."""

import asyncio

from services.core.handoff import Party
from services.kvstore.quarantine import QuarantineWatch


class Slots:
    def __init__(self, *held: int) -> None:
        self.held = set(held)

    def watch(self) -> QuarantineWatch:
        return QuarantineWatch(self.held.__contains__)


def test_a_session_is_quiet_once_its_slot_is_free() -> None:
    slots = Slots(3)
    watch = slots.watch()
    watch.add(Party(3, "life"))
    assert watch.look() == [] and not watch.is_empty
    slots.held.clear()
    assert watch.look() == [Party(4, "life")]
    assert watch.look() == [] and watch.is_empty


def test_a_later_session_is_not_quiet_before_an_earlier_one_of_its_process() -> None:
    slots = Slots(1, 2)
    watch = slots.watch()
    for number in (1, 2, 3):
        watch.add(Party(number, "life"))
    slots.held.remove(2)
    assert watch.look() == []
    slots.held.clear()
    assert watch.look() == [Party(4, "life")]


def test_what_is_known_of_the_earlier_ones_is_told_though_later_ones_still_copy() -> None:
    slots = Slots(2)
    watch = slots.watch()
    watch.add(Party(1, "life"))
    watch.add(Party(2, "life"))
    assert watch.look() == [Party(2, "life")]
    assert not watch.is_empty


def test_processes_do_not_wait_for_each_other() -> None:
    slots = Slots(1)
    watch = slots.watch()
    watch.add(Party(1, "stopped"))
    watch.add(Party(2, "well"))
    assert watch.look() == [Party(3, "well")]


async def test_it_looks_again_while_a_slot_is_held() -> None:
    slots, told = Slots(1), asyncio.Queue[Party]()
    watch = slots.watch()
    keeping = asyncio.create_task(watch.keep(told.put_nowait))
    watch.add(Party(1, "life"))
    watch.add(Party(5, "other"))
    assert await asyncio.wait_for(told.get(), 5) == Party(6, "other")
    slots.held.clear()
    assert await asyncio.wait_for(told.get(), 5) == Party(2, "life")
    keeping.cancel()
