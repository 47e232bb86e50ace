"""Which processes a local cluster has, and what they are told."""

from pathlib import Path

import pytest

from services.cli.errors import CommandError
from services.cli.layout import DRAIN_ORDER, ClusterLayout, Member, Wiring, members

WIRING = Wiring("nats://token@127.0.0.1:4222", "127.0.0.1:4317", "token")


def by_name(layout: ClusterLayout) -> dict[str, Member]:
    return {member.name: member for member in members(layout, WIRING)}


def test_every_pool_has_its_size_and_every_process_is_drained_once() -> None:
    found = by_name(ClusterLayout(prefill=2, decode=3, kvstore=1, scheduler=2))
    assert set(found) == {
        *("gateway-0", "scheduler-0", "scheduler-1", "kvstore-0"),
        *("prefill-0", "prefill-1"),
        *("decode-0", "decode-1", "decode-2"),
    }
    drained = [service for group in DRAIN_ORDER for service in group]
    assert sorted(drained) == sorted({member.service for member in found.values()})


def test_settings_are_told_by_environment_and_more_fields_win() -> None:
    layout = ClusterLayout(model=Path("/m"), http_port=8000, fields={"decode": {"num_blocks": "64", "threads": "2"}})
    found = by_name(layout)
    assert found["gateway-0"].environment["DIPTYCH_GATEWAY__HTTP_LISTEN"] == "127.0.0.1:8000"
    assert found["gateway-0"].environment["DIPTYCH_GATEWAY__MODEL"] == "/m"
    assert found["decode-0"].environment["DIPTYCH_DECODE__NUM_BLOCKS"] == "64"
    assert found["decode-0"].environment["DIPTYCH_DECODE__THREADS"] == "2"
    assert found["prefill-0"].environment["DIPTYCH_PREFILL__THREADS"] == "1"
    assert "DIPTYCH_KVSTORE__MODEL" not in found["kvstore-0"].environment
    for member in found.values():
        assert member.environment[f"DIPTYCH_{member.service.upper()}__EXIT_WITH_PARENT"] == "true"


@pytest.mark.parametrize("sizes", [{"decode": 0}, {"prefill": -1}, {"kvstore": -1}, {"kvstore": 0}, {"scheduler": 0}])
def test_a_cluster_that_could_not_answer_is_refused_with_the_option_named(sizes: dict[str, int]) -> None:
    with pytest.raises(CommandError, match="--"):
        ClusterLayout(**sizes)  # type: ignore[arg-type]


def test_without_prefill_workers_no_store_is_needed() -> None:
    assert "kvstore-0" not in by_name(ClusterLayout(prefill=0, kvstore=0))


def cores(layout: ClusterLayout) -> dict[str, str]:
    return {
        name: next(value for key, value in member.environment.items() if key.endswith("__CORES"))
        for name, member in by_name(layout).items()
        if member.service in ("prefill", "decode")
    }


def test_processors_are_shared_out_among_the_workers() -> None:
    assert cores(ClusterLayout(processors=(4, 7))) == {"decode-0": "[4]", "prefill-0": "[7]"}
    layout = ClusterLayout(prefill=0, kvstore=0, processors=(4, 7))
    assert cores(layout) == {"decode-0": "[4, 7]"}
    assert by_name(layout)["decode-0"].environment["DIPTYCH_DECODE__THREADS"] == "2"


def test_nobody_else_runs_where_decode_workers_do() -> None:
    layout = ClusterLayout(decode=2, processors=(0, 1, 2, 3))
    allowed = {member.name: member.processors for member in members(layout, WIRING)}
    assert allowed["decode-0"] == (0,) and allowed["decode-1"] == (1,)
    assert {allowed[name] for name in allowed if not name.startswith("decode")} == {(2, 3)}


@pytest.mark.parametrize("layout", [ClusterLayout(), ClusterLayout(prefill=0, kvstore=0, processors=(0, 1))])
def test_where_nothing_is_left_beside_decode_everybody_runs_everywhere(layout: ClusterLayout) -> None:
    assert {member.processors for member in members(layout, WIRING)} == {()}


def test_workers_that_have_not_enough_processors_keep_to_none() -> None:
    layout = ClusterLayout(prefill=2, decode=2, processors=(0, 1))
    assert set(cores(layout).values()) == {"[]"}
    assert by_name(layout)["prefill-1"].environment["DIPTYCH_PREFILL__THREADS"] == "1"


def test_an_engines_choices_reach_every_worker_and_nobody_else() -> None:
    found = by_name(ClusterLayout(engine={"weights": "int8"}))
    assert found["prefill-0"].environment["DIPTYCH_PREFILL__WEIGHTS"] == "int8"
    assert found["decode-0"].environment["DIPTYCH_DECODE__WEIGHTS"] == "int8"
    assert not any(key.endswith("__WEIGHTS") for key in found["gateway-0"].environment)
