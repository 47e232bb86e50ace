"""What the simulated machines are: read from a file with its sources, never made up in code.

A worker's step cost is either given as fitted coefficients (`[cost]`) or follows from the model's shape and the
machine's figures (`[model]`, `[machine]`):

    per token            2 · parameters in matrices / compute
    per token · context  4 · layers · heads · head size / compute      (scores, and values summed by them)
    per context          KV bytes of a token / memory                  (the cache is read once a step)
    fixed                weights' bytes / memory + overhead

with compute and memory the machine's figures times the share that real engines reach.
"""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from services.core.batch_limits import BatchLimits
from services.core.model_config import KVFormat
from services.core.step_cost import StepCost

UNBOUNDED = 1 << 30
PROFILES = Path(__file__).parent / "profiles"


class ProfileError(Exception):
    """The file is no profile; the message is for people."""


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """One worker."""

    cost: StepCost
    num_blocks: int
    """Of its KV cache."""
    max_running: int
    step_seconds: float
    """Predicted seconds of a step; prompts are cut to it."""
    watermark_blocks: int = 0

    def limits(self, block_size: int) -> BatchLimits:
        """As a real worker of this kind has them."""
        return BatchLimits(
            block_size=block_size,
            num_blocks=self.num_blocks,
            max_running=self.max_running,
            max_waiting=UNBOUNDED,
            max_context=UNBOUNDED,
            step_seconds=self.step_seconds,
            cost=self.cost,
            watermark_blocks=self.watermark_blocks,
            even_chunks=True,
        )

    def cut_to(self, step_seconds: float) -> Self:
        """The same with steps of another length."""
        return replace(self, step_seconds=step_seconds)


@dataclass(frozen=True, slots=True)
class Wires:
    """What bytes and messages take."""

    nic: float
    """Bytes per second of one machine's network, each way."""
    near: float
    """Bytes per second between a worker and the store of its machine."""
    latency: float
    """Seconds that a transfer takes besides its bytes."""
    request: float
    """Seconds from arrival until a worker has the request, all hops together."""
    token: float
    """Seconds from a drawn token to the client."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What a request is meant to get."""

    ttft: float
    """Seconds to the first token."""
    itl: float
    """Seconds that nine in ten of its gaps between tokens keep to."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Machines, pools and objective."""

    name: str
    prefill: WorkerModel
    decode: WorkerModel
    whole: WorkerModel
    """A machine that does both."""
    wires: Wires
    kv_format: KVFormat
    tail_block: int
    """Tokens of a block as workers hand it over; what a prompt has beyond its last full one is computed by decode."""
    store_blocks: int
    objective: Objective
    pools: tuple[int, int]
    """Prefill and decode workers, unless others are asked for."""

    @property
    def block_size(self) -> int:
        return self.kv_format.block_size

    @property
    def token_bytes(self) -> float:
        """KV of one token."""
        return self.kv_format.block_bytes / self.kv_format.block_size


def load(name_or_path: str) -> Profile:
    """A profile that comes with the package, or a file. Raises ProfileError."""
    path = Path(name_or_path) if name_or_path.endswith(".toml") else PROFILES / f"{name_or_path}.toml"
    try:
        return parsed(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        known = ", ".join(sorted(each.stem for each in PROFILES.glob("*.toml")))
        raise ProfileError(f"no such profile; those that come with it: {known}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ProfileError(f"the profile is incomplete or wrong: {error}") from error


def parsed(found: dict[str, Any]) -> Profile:
    """KeyError, TypeError or ValueError if something is missing or wrong."""
    model, cache, pools = found["model"], found["cache"], found["pools"]
    kv = KVFormat("float16", cache["block_size"], model["layers"], model["kv_heads"], model["head_dim"])
    cost = StepCost(**found["cost"]) if "cost" in found else _cost(model, found["machine"], kv)
    costs = {role: StepCost(**found[f"cost_{role}"]) if f"cost_{role}" in found else cost for role in _ROLES}
    blocks = int(cache["worker_bytes"] // kv.block_bytes)
    workers = {
        role: WorkerModel(costs[role], blocks, pools[role]["max_running"], pools[role]["step_seconds"], blocks // 100)
        for role in _ROLES
    }
    return Profile(
        name=found["name"],
        **workers,
        wires=Wires(**found["wires"]),
        kv_format=kv,
        tail_block=cache["tail_block"],
        store_blocks=int(cache["store_bytes"] // kv.block_bytes),
        objective=Objective(**found["objective"]),
        pools=(pools["prefill"]["workers"], pools["decode"]["workers"]),
    )


_ROLES = ("prefill", "decode", "whole")


def _cost(model: dict[str, Any], machine: dict[str, Any], kv: KVFormat) -> StepCost:
    compute = machine["devices"] * machine["flops"] * machine["compute_share"]
    memory = machine["devices"] * machine["bandwidth"] * machine["memory_share"]
    layer = model["hidden"] * (2 * model["heads"] + 2 * model["kv_heads"]) * model["head_dim"]
    layer += 3 * model["hidden"] * model["intermediate"]
    parameters = model["layers"] * layer + model["hidden"] * model["vocab"]
    return StepCost(
        fixed=parameters * model["weight_bytes"] / memory + machine["step_overhead"],
        per_token=2 * parameters / compute,
        per_token_context=4 * model["layers"] * model["heads"] * model["head_dim"] / compute,
        per_context=kv.block_bytes / kv.block_size / memory,
    )
