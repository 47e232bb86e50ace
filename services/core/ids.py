"""Identities. Each is its own type, so that one cannot be passed for another."""

from dataclasses import dataclass
from typing import NewType

RequestId = NewType("RequestId", str)
"""Made by the gateway, unique in the cluster; never the client's own id."""

BlockHash = NewType("BlockHash", bytes)
"""Chained hash of a full block and everything before it, see `core/blocks.py`."""

BlockId = NewType("BlockId", int)
"""Index of a block in one worker's KV cache."""


@dataclass(frozen=True, slots=True, order=True)
class RequestKey:
    """One attempt at one request; what every process files its state under.

    A later attempt of the same request is another key, so a late message of an earlier one finds nothing.
    """

    request_id: RequestId
    attempt: int = 0

    def __str__(self) -> str:
        return f"{self.request_id}/{self.attempt}"
