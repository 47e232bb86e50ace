"""The two sides of a store's facts: numbers, gaps, inventories, bounds."""

from dataclasses import replace

from services.core.block_facts import MOST_AHEAD, MOST_IN_MESSAGE, Facts, Gap, Incoming, Outgoing, Stock, short
from services.core.ids import BlockHash

STOCK = Stock("store", "s:1", "life", "f", "format")


def named(*names: str) -> list[BlockHash]:
    return [BlockHash(name.encode().ljust(32, b".")) for name in names]


def held(incoming: Incoming) -> set[str]:
    return {block.rstrip(b".").decode() for block in incoming.blocks}


def incoming_after(*heard: Facts) -> Incoming:
    incoming = Incoming(STOCK, 100)
    for facts in heard:
        incoming.hear(facts)
    return incoming


def test_what_is_told_is_what_is_known() -> None:
    outgoing = Outgoing(STOCK)
    told = outgoing.take(named("a", "b"), []) + outgoing.take(named("c"), named("a"))
    assert [facts.sequence for facts in told] == [1, 2]
    assert held(incoming_after(*told)) == {"b", "c"}


def test_changes_that_change_nothing_are_not_told() -> None:
    outgoing = Outgoing(STOCK)
    outgoing.take(named("a"), [])
    assert outgoing.take(named("a"), named("never", "here")) == []
    assert outgoing.latest() == Facts(STOCK, 1)


def test_many_changes_go_in_messages_below_the_limit() -> None:
    outgoing = Outgoing(STOCK)
    first = [BlockHash(number.to_bytes(32, "big", signed=False)[::-1]) for number in range(MOST_IN_MESSAGE)]
    second = [BlockHash(number.to_bytes(32, "big")[::-1]) for number in range(10**6, 10**6 + MOST_IN_MESSAGE + 1)]
    [whole] = outgoing.take(first, [])
    assert len(whole.added) == MOST_IN_MESSAGE
    told = outgoing.take(second, first)
    assert [len(facts.added) + len(facts.removed) for facts in told] == [MOST_IN_MESSAGE, MOST_IN_MESSAGE, 1]
    assert [facts.sequence for facts in told] == [2, 3, 4]
    incoming = Incoming(STOCK, 10**6)
    for facts in (whole, *told):
        assert incoming.hear(facts) is None
    assert incoming.blocks == {short(each) for each in second}
    assert [len(facts.added) for facts in outgoing.inventory()] == [MOST_IN_MESSAGE, 1]


def test_a_lost_message_is_noticed_at_the_next_one_and_also_by_silence() -> None:
    outgoing = Outgoing(STOCK)
    [first], [_], [third] = (outgoing.take(named(name), []) for name in "abc")
    incoming = incoming_after(first)
    assert incoming.hear(third) == Gap("s:1", 2)
    assert held(incoming) == {"a"}
    quiet = incoming_after(first)
    assert quiet.hear(outgoing.latest()) == Gap("s:1", 2)


def test_messages_that_come_late_or_twice_close_the_gap_by_themselves() -> None:
    outgoing = Outgoing(STOCK)
    [first], [second], [third] = (outgoing.take(named(name), []) for name in "abc")
    incoming = incoming_after(first, third)
    assert incoming.hear(second) is None
    assert incoming.hear(second) is None
    assert held(incoming) == {"a", "b", "c"}


def test_an_inventory_closes_the_gap_and_what_was_heard_meanwhile_follows_it() -> None:
    outgoing = Outgoing(STOCK)
    [first], [_] = outgoing.take(named("a"), []), outgoing.take(named("b"), named("a"))
    [inventory] = outgoing.inventory()
    [third] = outgoing.take(named("c"), [])
    incoming = incoming_after(first, third)
    assert incoming.replace(inventory) is None
    assert held(incoming) == {"b", "c"}


def test_an_inventory_older_than_what_is_known_changes_nothing() -> None:
    outgoing = Outgoing(STOCK)
    told = outgoing.take(named("a"), [])
    [old] = outgoing.inventory()
    told += outgoing.take(named("b"), named("a"))
    incoming = incoming_after(*told)
    incoming.replace(old)
    assert held(incoming) == {"b"}


def test_a_new_life_begins_empty() -> None:
    incoming = incoming_after(*Outgoing(STOCK).take(named("a"), []))
    reborn = Outgoing(replace(STOCK, incarnation="next"))
    assert incoming.hear(reborn.latest()) is None
    assert held(incoming) == set()
    reborn.take(named("b"), [])
    [second] = reborn.take(named("c"), [])
    assert incoming.hear(second) == Gap("s:1", 2)


def test_what_is_kept_is_bounded() -> None:
    incoming = Incoming(STOCK, most_blocks=3)
    outgoing = Outgoing(STOCK)
    outgoing.take(named("lost"), [])
    for number in range(2 * MOST_AHEAD):
        for facts in outgoing.take(named(f"b{number}"), []):
            incoming.hear(facts)
        incoming.check_invariants()
    [inventory] = outgoing.inventory()
    assert incoming.replace(inventory) is None
    assert len(incoming.blocks) == 3
    incoming.check_invariants()


def test_a_number_that_nobody_said_is_forgotten_with_the_next_inventory() -> None:
    incoming = incoming_after(Facts(STOCK, 1 << 60))
    assert incoming.gap is not None
    [inventory] = Outgoing(STOCK).inventory()
    assert incoming.replace(inventory) is None
