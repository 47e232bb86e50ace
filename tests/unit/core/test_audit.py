"""The audit finds what nobody knows of who must, and says nothing of what is only on its way."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from services.core.audit import KNOWN_BY, Held, Snapshot, Stranded, held, stranded, suspects

GRACE = 5.0
OLD = 60.0


def of(kind: str, request_id: str = "r", attempt: int = 0, age: float = OLD, **more: object) -> Held:
    return Held(kind, request_id, attempt, age, **more)


def process(service: str, *things: Held, name: str = "", **more: object) -> Snapshot:
    return Snapshot(service, name or f"{service}-0", 0.0, 0.1, f"{name or service}-life", things, **more)


def later(look: Sequence[Snapshot], seconds: float) -> list[Snapshot]:
    return [replace(each, asked=each.asked + seconds, heard=each.heard + seconds) for each in look]


def found(look: Sequence[Snapshot], seconds: float = 6.0) -> list[tuple[str, str]]:
    """What is stranded if two looks, `seconds` apart, both see this: by process and kind."""
    return [(one.name, one.held.kind) for one in stranded(look, later(look, seconds), GRACE)]


WHOLE = (
    process("gateway", of("request"), of("session", "")),
    process("scheduler", of("story")),
    process("prefill", of("work"), of("request", count=3), of("publication"), blocks_used=3),
    process("decode", of("work"), of("request", count=4), of("fetch", count=4), of("pinned blocks", ""), blocks_used=4),
    process("kvstore", of("handoff"), of("pins", count=2), of("awaited"), of("granted"), blocks_used=3),
)
"""One request in the middle of its hand-over."""


def test_a_request_in_the_middle_of_its_hand_over_is_not_stranded() -> None:
    assert found(WHOLE) == []
    assert suspects(WHOLE) == []


@pytest.mark.parametrize(("holder", "kind"), KNOWN_BY)
def test_everything_that_somebody_must_know_of_is_found_when_nobody_does(holder: str, kind: str) -> None:
    service = "decode" if holder == "worker" else holder
    assert found([process(service, of(kind))]) == [(f"{service}-0", kind)]


@pytest.mark.parametrize(("holder", "kind"), KNOWN_BY)
def test_each_is_known_by_any_one_of_those_its_rule_names(holder: str, kind: str) -> None:
    rule = KNOWN_BY[holder, kind]
    service = "decode" if holder == "worker" else holder
    for knowing in rule.kinds:
        if rule.group == "itself":
            look = [process(service, of(kind), of(knowing, age=0.0))]
        else:
            other = "prefill" if rule.group == "worker" else rule.group
            look = [process(service, of(kind)), process(other, of(knowing, age=0.0))]
        assert (f"{service}-0", kind) not in found(look)


def test_work_of_an_earlier_attempt_is_found_while_the_request_lives() -> None:
    look = [process("scheduler", of("story", attempt=257)), process("prefill", of("work", attempt=256))]
    assert ("prefill-0", "work") in found(look)


def test_a_further_answer_is_the_gateways_under_the_requests_own_id() -> None:
    look = [process("gateway", of("request", "r")), process("scheduler", of("story", "r.3"))]
    assert found(look) == []


def test_what_another_process_of_the_kind_computes_does_not_count() -> None:
    look = [
        process("gateway", of("request")),
        process("scheduler", of("story")),
        process("decode", of("fetch"), name="decode-0"),
        process("decode", of("work"), name="decode-1"),
    ]
    assert found(look) == [("decode-0", "fetch")]


def test_it_takes_two_looks_with_the_grace_between_them() -> None:
    look = [process("decode", of("work"))]
    assert found(look, seconds=GRACE) == []
    assert found(look, seconds=GRACE + 0.2) == [("decode-0", "work")]
    assert stranded([], look) == stranded(look, []) == []


def test_what_began_since_the_first_question_is_not_stranded() -> None:
    assert found([process("decode", of("work", age=6.0))]) == []
    assert found([process("decode", of("work", age=6.2))]) == [("decode-0", "work")]


def test_what_only_one_of_the_looks_has_is_not_stranded() -> None:
    empty, full = [process("decode")], [process("decode", of("work"))]
    assert stranded(empty, later(full, 6), GRACE) == stranded(full, later(empty, 6), GRACE) == []


def test_what_one_of_the_looks_knows_of_is_not_stranded() -> None:
    orphan, known = [process("decode", of("work"))], [process("decode", of("work")), process("scheduler", of("story"))]
    assert stranded(known, later(orphan, 6), GRACE) == []
    assert [one.held.kind for one in stranded(orphan, later(known, 6), GRACE)] == []


def test_another_life_of_a_process_holds_other_things() -> None:
    before = [process("decode", of("work"))]
    after = [replace(each, incarnation="another") for each in later(before, 6)]
    assert stranded(before, after, GRACE) == []


@pytest.mark.parametrize(("holder", "kind"), [each for each in KNOWN_BY if KNOWN_BY[each].group != "itself"])
def test_a_process_that_does_not_answer_may_know_anything(holder: str, kind: str) -> None:
    service = "decode" if holder == "worker" else holder
    asleep = {"worker": "prefill"}.get(KNOWN_BY[holder, kind].group, KNOWN_BY[holder, kind].group)
    look = [process(service, of(kind)), process(asleep, name="asleep", is_silent=True)]
    assert found(look) == []


def test_an_unknown_kind_must_still_belong_to_a_request_that_a_gateway_answers() -> None:
    look = [process("kvstore", of("novelty")), process("scheduler", of("novelty"))]
    assert found(look) == [("kvstore-0", "novelty"), ("scheduler-0", "novelty")]
    assert found([*look, process("gateway", of("request"))]) == []


def test_a_gateways_own_request_is_its_clients() -> None:
    assert found([process("gateway", of("request"))]) == []


def test_a_span_may_be_open_only_while_its_process_holds_something_for_a_request() -> None:
    assert found([process("decode", of("span", "", state="kv.get"))]) == [("decode-0", "span")]
    assert found([process("gateway", of("span", "", state="gateway.request"), of("request"))]) == []


def test_blocks_that_no_request_accounts_for_are_lost() -> None:
    look = [process("decode", of("work"), of("request", count=2), blocks_used=5), process("scheduler", of("story"))]
    look.append(process("gateway", of("request")))
    (one,) = stranded(look, later(look, 6), GRACE)
    assert (one.held.kind, one.held.count) == ("blocks", 3)
    assert one.held.age == pytest.approx(6.1), "for at least as long as it is known"
    assert found([process("kvstore", of("quarantine", "", owner="decode-0/life"), blocks_used=1)])[-1:] != [
        ("kvstore-0", "blocks")
    ]


def test_blocks_that_several_requests_share_are_not_lost() -> None:
    shared = process("decode", of("request", "a", count=4), of("request", "b", count=4), blocks_used=5)
    assert ("decode-0", "blocks") not in found([shared])


def test_blocks_may_be_pinned_only_while_something_moves() -> None:
    assert found([process("decode", of("pinned blocks", ""))]) == [("decode-0", "pinned blocks")]
    assert ("decode-0", "pinned blocks") not in found([process("decode", of("pinned blocks", ""), of("fetch"))])


def test_a_quarantine_lasts_while_the_process_that_may_write_lives() -> None:
    store = process("kvstore", of("quarantine", "", owner="decode-0/decode-life"))
    assert found([store]) == [("kvstore-0", "quarantine")]
    assert found([store, process("decode")]) == []
    assert found([store, process("decode", name="asleep", is_silent=True)]) == []


def test_sessions_are_held_also_while_nobody_asks_for_anything() -> None:
    assert found([process("kvstore", of("session", ""))]) == []
    assert held([process("kvstore", of("session", ""))]) == []


def test_all_that_is_held_for_somebody_is_listed_whoever_knows_of_it() -> None:
    kinds = {thing.kind for _, thing in held(WHOLE)}
    assert kinds == {each.kind for snapshot in WHOLE for each in snapshot.held} - {"session"}
    assert [thing.kind for _, thing in held([process("decode", blocks_used=2)])] == ["blocks"]


def test_a_finding_names_the_process_the_thing_and_its_last_owner() -> None:
    thing = of("pins", count=3, owner="prefill-0/p1, decode-0/d1", last_heard=4.0)
    look = [process("kvstore", thing)]
    (one, *_) = stranded(look, later(look, 6), GRACE)
    why = "no worker has a publication or a fetch for it"
    assert one == Stranded("kvstore", "kvstore-0", "kvstore-life", thing, why)
