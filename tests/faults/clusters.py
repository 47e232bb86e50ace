"""Clusters that fault tests run: two of each, in pools too small for all requests at once."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.cli.layout import ClusterLayout
from services.core.model_config import KVFormat
from services.kvstore.arena import ALIGNMENT
from services.modelfiles.prepared import PreparedModel

SERVICES = ("gateway", "scheduler", "prefill", "decode", "kvstore")
SESSION_SECONDS = 1.5
"""After so much silence a process counts as lost."""

Plants = Mapping[str, float | Mapping[str, float]]
"""Seam to what is planted there."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How many there are, and how much each holds."""

    prefill: int = 2
    decode: int = 2
    kvstore: int = 2
    worker_blocks: int = 128
    """One and a third of the largest request's."""
    store_blocks: int = 160
    max_running: int = 8
    way: Literal["near", "far"] = "near"
    """Whether workers copy into the stores' memory, or stream."""
    scheduler: int = 1


SMALL = Shape()


def layout(model: Path, shape: Shape = SMALL, faults: Mapping[str, Plants] | None = None) -> ClusterLayout:
    """`faults` by service."""
    fields: dict[str, dict[str, str]] = {
        service: {
            "profile": "test",
            "session_timeout": f"{SESSION_SECONDS:g}",
            "faults": json.dumps(dict((faults or {}).get(service, {}))),
        }
        for service in SERVICES
    }
    for service in ("prefill", "decode"):
        fields[service] |= {
            "num_blocks": str(shape.worker_blocks),
            "max_running": str(shape.max_running),
            "attach": json.dumps(shape.way == "near"),
        }
    fields["kvstore"]["capacity_bytes"] = str(shape.store_blocks * page_bytes(model))
    return ClusterLayout(
        model=model,
        prefill=shape.prefill,
        decode=shape.decode,
        kvstore=shape.kvstore,
        scheduler=shape.scheduler,
        fields=fields,
        drain_seconds=3,
    )


def page_bytes(model: Path) -> int:
    """What a block takes of a store's memory, with a cache as it is by default."""
    config = PreparedModel.open(model).config
    block = KVFormat("float16", 16, config.layers, config.kv_heads, config.head_dim).block_bytes
    return -(-block // ALIGNMENT) * ALIGNMENT
