"""What everybody is given, and in which order."""

from collections import Counter

import pytest

from peers.rounds import rounds
from peers.workloads import W1, W3, WORKLOADS, picked

NAMES = ["ours", "theirs", "others"]


def test_prompts_are_the_same_for_all_and_new_in_each_repetition() -> None:
    assert W1.prompts(1000, 0) == W1.prompts(1000, 0)
    assert W1.prompts(1000, 0) != W1.prompts(1000, 1)


def test_no_two_requests_share_a_prefix() -> None:
    beginnings = {tuple(prompt[:4]) for repetition in range(3) for prompt in W1.prompts(49_152, repetition)}
    assert len(beginnings) == 3 * W1.requests


def test_prompts_have_their_length_and_ids_of_the_vocabulary() -> None:
    for workload in WORKLOADS.values():
        prompts = workload.prompts(500, 0)
        assert [len(prompt) for prompt in prompts] == [workload.prompt_tokens] * workload.requests
        assert all(100 <= token < 500 for prompt in prompts for token in prompt)


def test_workloads_are_picked_by_name_and_once() -> None:
    assert picked("W3, W1,W3") == (W3, W1)


@pytest.mark.parametrize("names", ["", "W4", "W1,,w2"])
def test_an_unknown_workload_is_refused_with_the_known_ones(names: str) -> None:
    with pytest.raises(ValueError, match="W1, W2, W3"):
        picked(names)


def test_everybody_runs_every_workload_once_in_each_repetition() -> None:
    turns = list(rounds(NAMES, (W1, W3), 4))
    assert set(Counter(turns).values()) == {1}
    assert len(turns) == 4 * 2 * 3


def test_all_contenders_have_a_workload_done_before_the_next_begins() -> None:
    turns = list(rounds(NAMES, (W1, W3), 2))
    for at in range(0, len(turns), len(NAMES)):
        group = turns[at : at + len(NAMES)]
        assert {turn.contender for turn in group} == set(NAMES)
        assert len({(turn.repetition, turn.workload) for turn in group}) == 1


def test_each_repetition_begins_with_another_contender() -> None:
    turns = list(rounds(NAMES, (W1,), 4))
    assert [turn.contender for turn in turns[:: len(NAMES)]] == ["ours", "theirs", "others", "ours"]
