"""The decoder against transformers in float32, on the same random weights."""

import random
from typing import Any

import pytest
import torch

from services.core.plan import Chunk
from services.engine.kv_cache import KVCache
from tests.unit.engine.attention_cases import spoil
from tests.unit.engine.tiny_decoder import BLOCK_SIZE, Pair, chunk, make_pair

PROMPT = [(17 * at * at + 5) % 97 for at in range(50)]
TOLERANCE = 1e-4

MODELS: dict[str, dict[str, Any]] = {
    "llama, tied": {},
    "llama, untied": {"tie_word_embeddings": False},
    "llama, wide heads": {"head_dim": 16},
    "llama, one kv head": {"num_key_value_heads": 1},
    "llama, no grouping": {"num_key_value_heads": 6},
    "llama, biased": {"attention_bias": True},
    "mistral": {"architecture": "mistral"},
    "mistral, untied, wide heads": {"architecture": "mistral", "tie_word_embeddings": False, "head_dim": 16},
    "qwen2, biased": {"architecture": "qwen2"},
    "qwen2, untied": {"architecture": "qwen2", "tie_word_embeddings": False},
    "qwen3, q and k normalized": {"architecture": "qwen3"},
    "qwen3, untied": {"architecture": "qwen3", "tie_word_embeddings": False},
    "qwen3, biased": {"architecture": "qwen3", "attention_bias": True},
}

# Trained on 16 positions, so that a prompt of 50 lies well beyond.
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "attention_factor": 1.138629436,
    },
    "yarn, a narrow ramp": {
        "rope_type": "yarn",
        "factor": 8.0,
        "beta_fast": 4.0,
        "beta_slow": 3.5,
        "original_max_position_embeddings": 16,
        "attention_factor": 1.0,
    },
}


def compute(pair: Pair, cache: KVCache, sizes: list[int], blocks: list[int]) -> torch.Tensor:
    """The prompt in chunks of these sizes, one step each; logits of every row."""
    rows, start = [], 0
    for size in sizes:
        rows.append(pair.logits([chunk(PROMPT[start : start + size], start, blocks)], cache))
        start += size
    return torch.cat(rows)


def assert_close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS.keys())
def test_logits_of_a_whole_prompt_are_those_of_transformers(changes: dict[str, Any]) -> None:
    pair = make_pair(**changes)
    assert_close(compute(pair, pair.cache(13), [50], list(range(13))), pair.expected(PROMPT))


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES.keys())
def test_stretched_positions_are_those_of_transformers_beyond_the_trained_length(rope: dict[str, Any]) -> None:
    pair = make_pair(rope=rope, hidden_size=96, rope_theta=500.0)
    assert_close(compute(pair, pair.cache(13), [50], list(range(13))), pair.expected(PROMPT))


def test_yarn_derives_the_attention_factor_that_transformers_derives() -> None:
    derived = make_pair(rope={k: v for k, v in ROPES["yarn"].items() if k != "attention_factor"})
    assert derived.reference.model.rotary_emb.attention_scaling == pytest.approx(1.138629436)


@pytest.mark.parametrize("sizes", [[1] * 50, [4] * 12 + [2], [1, 7, 3, 20, 5, 13, 1], [49, 1], [16, 34]])
def test_chunks_of_any_sizes_give_the_logits_of_the_whole_prompt(llama: Pair, sizes: list[int]) -> None:
    assert_close(compute(llama, llama.cache(13), sizes, list(range(13))), llama.expected(PROMPT))


def test_blocks_may_lie_in_any_order(llama: Pair) -> None:
    blocks = random.Random(3).sample(range(40), 13)
    assert_close(compute(llama, llama.cache(40), [9, 1, 1, 30, 9], blocks), llama.expected(PROMPT))


def test_requests_in_one_step_do_not_see_each_other(llama: Pair) -> None:
    """Prompts of many lengths, in steps that mix decode rows, first chunks and later chunks."""
    dice = random.Random(11)
    prompts = [[dice.randrange(97) for _ in range(length)] for length in (1, 2, 5, 16, 17, 33, 50, 50)]
    free = dice.sample(range(100), 100)
    tables = [[free.pop() for _ in range(-(-len(prompt) // BLOCK_SIZE))] for prompt in prompts]
    rows: list[list[torch.Tensor]] = [[] for _ in prompts]
    done = [0] * len(prompts)
    cache = llama.cache(100)
    while owners := [at for at, prompt in enumerate(prompts) if done[at] < len(prompt)]:
        chunks: list[Chunk] = []
        for at in owners:
            size = min(dice.choice((1, 1, 1, 2, 7, 19)), len(prompts[at]) - done[at])
            chunks.append(chunk(prompts[at][done[at] : done[at] + size], done[at], tables[at], name=str(at)))
            done[at] += size
        logits = torch.split(llama.logits(chunks, cache), [len(each.tokens) for each in chunks])
        for at, part in zip(owners, logits, strict=True):
            rows[at].append(part)
    for prompt, parts in zip(prompts, rows, strict=True):
        assert_close(torch.cat(parts), llama.expected(prompt))


def test_a_shared_prefix_is_read_by_both_requests(llama: Pair) -> None:
    cache = llama.cache(20)
    llama.logits([chunk(PROMPT[:8], 0, [3, 4])], cache)
    first, second = PROMPT[8:14], PROMPT[20:29]
    logits = llama.logits([chunk(first, 8, [3, 4, 9, 2], "a"), chunk(second, 8, [3, 4, 5, 6, 7], "b")], cache)
    assert_close(logits[:6], llama.expected(PROMPT[:8] + first)[8:])
    assert_close(logits[6:], llama.expected(PROMPT[:8] + second)[8:])


@pytest.mark.parametrize("sizes", [[50], [5, 45], [1] * 50])
def test_what_an_earlier_owner_left_in_a_block_is_never_read(llama: Pair, sizes: list[int]) -> None:
    cache = llama.cache(13)
    spoil(cache, 0)
    assert_close(compute(llama, cache, sizes, list(range(13))), llama.expected(PROMPT))


def test_a_neighbour_whose_cache_is_not_a_number_harms_only_itself(llama: Pair) -> None:
    cache = llama.cache(16)
    llama.logits([chunk(PROMPT[:12], 0, [0, 1, 2], "sound"), chunk(PROMPT[:7], 0, [3, 4], "broken")], cache)
    spoil(cache, 1, 3)
    logits = llama.logits([chunk([PROMPT[12]], 12, [0, 1, 2, 5], "sound"), chunk([1], 7, [3, 4], "broken")], cache)
    assert_close(logits[0], llama.expected(PROMPT[:13])[12])
    assert logits[1].isnan().all()
