"""Copies between machines: each machine's network, and each machine's way between worker and store, serves one copy
after the other. A copy waits for both of its ends and then takes what its bytes take."""

from services.simulation.profile import Wires


class Network:
    """Machines are numbered. All answers are times."""

    def __init__(self, wires: Wires, machines: int) -> None:
        self._wires = wires
        self._free = [0.0] * machines
        """When each machine's network has nothing left to copy."""
        self._near_free = [0.0] * machines

    def copied(self, source: int, target: int, size: float, since: float) -> float:
        """When `size` bytes, asked for at `since`, are there."""
        if source == target:
            end = max(since, self._near_free[source]) + size / self._wires.near
            self._near_free[source] = end
        else:
            end = max(since, self._free[source], self._free[target]) + size / self._wires.nic
            self._free[source] = self._free[target] = end
        return end + self._wires.latency

    def handed_over(self, ends: tuple[int, int], size: float, tail: float, times: tuple[float, float]) -> float:
        """When a prompt's blocks are there that were copied while it was computed: `times` are when the first could go
        and when the last were computed; `tail` of the `size` bytes are of the last chunk."""
        began, computed = times
        return max(self.copied(*ends, size, began), computed + tail / self.rate(*ends) + self._wires.latency)

    def rate(self, source: int, target: int) -> float:
        """Bytes per second."""
        return self._wires.near if source == target else self._wires.nic
