"""Logits of whole prompts, computed in uneven chunks over shuffled blocks, are within 1e-3 of the reference's."""

import random

import pytest
import torch

from services.core.ids import BlockId, RequestId, RequestKey
from services.core.plan import Chunk
from services.engine.batch import Batch
from services.engine.torch_load import TorchEngine, TorchSettings, load_torch
from services.modelfiles.prepared import PreparedModel
from tests.support.prompts import prompts
from tests.support.reference import LOGIT_TIE, Reference

NUM_BLOCKS = 128
CHUNKS = (64, 17, 33)


def logits(engine: TorchEngine, tokens: list[int], shuffle: random.Random) -> torch.Tensor:
    """`[tokens, vocab]`, ours."""
    blocks = tuple(BlockId(block) for block in shuffle.sample(range(NUM_BLOCKS), NUM_BLOCKS))
    rows, start = [], 0
    with torch.inference_mode():
        while start < len(tokens):
            part = tuple(tokens[start : start + CHUNKS[len(rows) % len(CHUNKS)]])
            chunk = Chunk(RequestKey(RequestId("r")), part, start, blocks, draw=None)
            batch = Batch.of([chunk], engine.format.block_size, engine.cache.device)
            rows.append(engine.decoder.logits(engine.decoder.forward(batch, engine.cache)))
            start += len(part)
    return torch.cat(rows)


@pytest.mark.timeout(600)
def test_logits_of_thirty_whole_prompts_are_within_a_thousandth(smollm2: PreparedModel, reference: Reference) -> None:
    engine = load_torch(smollm2, TorchSettings(NUM_BLOCKS))
    shuffle = random.Random(0)
    worst = 0.0
    for prompt in prompts(smollm2.tokenizer()):
        worst = max(worst, float((logits(engine, prompt, shuffle) - reference.logits(prompt)).abs().max()))
    print(f"largest difference of a logit: {worst:.2g}")
    assert worst < LOGIT_TIE
