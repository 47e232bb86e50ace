"""The whole decoder on kernels, against transformers on the same random weights."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from services.engine.kv_cache import KVCache
from services.engine.model import LlamaDecoder
from services.engine.triton.backend import TritonBackend
from services.engine.weights import DecoderWeights
from tests.unit.engine.tiny_decoder import Pair, chunk, kv_format, make_pair
from tests.unit.engine.triton.device import DEVICE

PROMPT = [(17 * at * at + 5) % 97 for at in range(23)]

MODELS: dict[str, dict[str, Any]] = {
    "qwen2, biased": {"architecture": "qwen2", "num_hidden_layers": 2},
    "qwen3, heads normalized": {"architecture": "qwen3", "num_hidden_layers": 2, "head_dim": 16},
}


def on_kernels(pair: Pair) -> Pair:
    weights = DecoderWeights.assemble(pair.config, pair.arrays, DEVICE)
    return replace(pair, decoder=LlamaDecoder(pair.config, weights, TritonBackend()))


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS.keys())
def test_prompts_in_chunks_beside_one_another_give_the_logits_of_transformers(changes: dict[str, Any]) -> None:
    pair = on_kernels(make_pair(**changes))
    cache = KVCache(kv_format(pair.config), 12, DEVICE)
    tables, other = [3, 1, 0, 2, 4, 5], [9, 8, 7]
    steps = [
        [chunk(PROMPT[:9], 0, tables), chunk(PROMPT[:1], 0, other, "other")],
        [chunk(PROMPT[9:10], 9, tables), chunk(PROMPT[1:8], 1, other, "other")],
        [chunk(PROMPT[10:], 10, tables), chunk(PROMPT[8:9], 8, other, "other")],
    ]
    rows = [pair.logits(chunks, cache).cpu() for chunks in steps]
    mine = torch.cat((rows[0][:9], rows[1][:1], rows[2][:13]))
    others = torch.cat((rows[0][9:], rows[1][1:], rows[2][13:]))
    exact = pair.expected(PROMPT)
    torch.testing.assert_close(mine, exact, rtol=0, atol=1e-4)
    torch.testing.assert_close(others, exact[:9], rtol=0, atol=1e-4)
