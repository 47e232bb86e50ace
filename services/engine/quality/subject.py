"""What is asked of an engine to measure it, whichever it is.

Owns the protocol. Every method writes into the engine's first blocks, so nobody may be served meanwhile.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from services.core.ids import BlockId, RequestId, RequestKey
from services.core.plan import Chunk

Floats = npt.NDArray[np.float32]

ROUNDING: Mapping[str, float] = {"int8": 0.5 / 127, "rounded float16": 2.0**-11}
"""Form to the largest error that rounding makes, as a share of the largest weight of an output channel. Forms that are
not here keep every weight as it is."""


@dataclass(frozen=True, slots=True)
class KeptMatrix:
    """A weight matrix as it is multiplied by, beside what it should be."""

    place: str
    """Such as `layer 7, down`."""
    form: str
    kept: Floats
    """`[outputs, inputs]`, decoded."""
    wanted: Floats
    """The same in the model's own numbers."""


class Subject(Protocol):
    """An engine that is measured."""

    def every_logits(self, tokens: Sequence[int]) -> Iterator[Floats]:
        """Logits after each token of a prompt, `[rows, vocab]` some rows at a time."""
        ...

    def embedded(self, tokens: Sequence[int]) -> Floats:
        """`[tokens, hidden]` before the first layer."""
        ...

    def layer(self, index: int, rows: Floats) -> Floats:
        """What one layer makes of a prompt's hidden states `[tokens, hidden]`."""
        ...

    def head(self, rows: Floats) -> Floats:
        """Logits `[tokens, vocab]` of hidden states after the last layer; no more than `pieces.LOGIT_ROWS` of them."""
        ...

    def matrices(self) -> Iterator[KeptMatrix]:
        """All that it multiplies by or embeds with, one at a time: the largest alone may be gigabytes."""
        ...


def whole_prompt(tokens: Sequence[int], block_size: int) -> Chunk:
    """A prompt as one chunk in the cache's first blocks."""
    blocks = tuple(BlockId(block) for block in range(-(-len(tokens) // block_size)))
    return Chunk(RequestKey(RequestId("quality")), tuple(tokens), 0, blocks, draw=None)
