"""What the benchmark asks of our engine besides steps: logits after every token, bytes a step reads, a profile.

Owns the knowledge of which engine was chosen; everything else drives it as a worker does.
"""

from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from peers.limits import head_parameters, layer_parameters
from peers.step_profile import COMPILED, TORCH, StepProfile
from services.core.engine_settings import WeightsMode
from services.core.ids import BlockId, RequestId, RequestKey
from services.core.plan import Chunk
from services.core.request import Sampling
from services.engine.compiled.runner import CompiledRunner
from services.engine.compiled.weights import decoder_weights
from services.engine.interface import WholeLogits
from services.engine.load import Engine
from services.modelfiles.prepared import PreparedModel

Logits = npt.NDArray[np.float32]

FLOAT32_BYTES = 4
GREEDY = Sampling(temperature=0.0)


def logits_of_texts(engine: Engine, texts: list[list[int]], path: Path) -> None:
    """`[tokens of all texts, vocab]`, float32, as .npy. Writes into the cache's first blocks.

    A token at a time, as answers are computed.
    """
    runner = cast(WholeLogits, engine.runner)
    np.save(path, np.concatenate([_logits(runner, text, engine.format.block_size) for text in texts]))


def step_bytes(engine: Engine, prepared: PreparedModel, weights: WeightsMode) -> int:
    """Bytes of matrices that one decode step reads, whatever its batch."""
    if isinstance(engine.runner, CompiledRunner):
        return decoder_weights(prepared, weights).step_bytes
    return FLOAT32_BYTES * (layer_parameters(engine.config) + head_parameters(engine.config))


def profile_of(engine: Engine) -> StepProfile:
    runner = engine.runner
    if isinstance(runner, CompiledRunner):
        return StepProfile(COMPILED, "bookkeeping", lambda: runner.profile.phases)
    return StepProfile(TORCH, "other")


def _logits(runner: WholeLogits, text: list[int], block_size: int) -> Logits:
    blocks = tuple(BlockId(block) for block in range(-(-len(text) // block_size)))
    key = RequestKey(RequestId("text"))
    chunks = (Chunk(key, (token,), at, blocks, draw=None) for at, token in enumerate(text))
    return np.concatenate([rows.copy() for chunk in chunks for rows in runner.every_logits(chunk)])
