"""Copies between machines share what carries them."""

import pytest

from services.simulation.network import Network
from services.simulation.profile import Wires

WIRES = Wires(nic=10.0, near=100.0, latency=0.5, request=0.0, token=0.0)


def test_copies_of_one_machine_go_one_after_the_other() -> None:
    network = Network(WIRES, 4)
    assert network.copied(0, 1, 20.0, since=1.0) == pytest.approx(3.5)
    assert network.copied(0, 2, 10.0, since=1.0) == pytest.approx(4.5)
    assert network.copied(3, 1, 10.0, since=5.0) == pytest.approx(6.5)
    assert network.copied(3, 3, 100.0, since=5.0) == pytest.approx(6.5), "its own way is another one"


def test_a_hand_over_ends_after_the_last_chunk_or_when_all_bytes_could_go() -> None:
    assert Network(WIRES, 2).handed_over((0, 1), 20.0, 5.0, (0.0, 10.0)) == pytest.approx(11.0)
    assert Network(WIRES, 2).handed_over((0, 1), 200.0, 5.0, (0.0, 10.0)) == pytest.approx(20.5)
