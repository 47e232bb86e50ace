"""The stand-in for an engine: it must notice what a real one would notice."""

import numpy as np
import pytest

from services.core.errors import KVCorrupt
from services.core.ids import BlockId
from services.core.plan import Drawn, StepPlan
from services.engine.interface import StepRunner
from tests.support.scripted_runner import UNWRITTEN, ScriptedRunner, continuation, next_token
from tests.unit.engine.tiny_decoder import chunk, greedy

VOCAB = 1000
PROMPT = list(range(500, 540))


def run(runner: StepRunner, sizes: list[int], blocks: list[int]) -> int:
    start = 0
    for size in sizes:
        part = chunk(PROMPT[start : start + size], start, blocks, draw=greedy(start + size))
        result = runner.execute(StepPlan((part,)))
        start += size
    return result.drawn[part.key].token


@pytest.mark.parametrize("sizes", [[40], [16, 24], [1] * 40, [17, 3, 20]])
def test_the_token_depends_on_the_tokens_and_not_on_chunks_or_blocks(sizes: list[int]) -> None:
    runner = ScriptedRunner(num_blocks=8, vocab=VOCAB)
    assert run(runner, sizes, [5, 2, 7]) == continuation(PROMPT, 1, VOCAB)[0]


def test_a_block_moved_by_its_bytes_continues_the_request() -> None:
    source, target = ScriptedRunner(8, VOCAB), ScriptedRunner(8, VOCAB)
    run(source, [40], [0, 1, 2])
    for taken, placed in ((0, 6), (1, 3)):
        target.kv.write_block(BlockId(placed), source.kv.read_block(BlockId(taken)))
    tail = chunk(PROMPT[32:], 32, [6, 3, 4], draw=greedy(40))
    assert target.execute(StepPlan((tail,))).drawn == {tail.key: Drawn(next_token(PROMPT, VOCAB))}


def test_swapped_blocks_change_the_token_and_missing_ones_fail_the_request() -> None:
    runner = ScriptedRunner(8, VOCAB)
    run(runner, [40], [0, 1, 2])
    swapped = chunk([PROMPT[39]], 39, [1, 0, 2], "swapped", greedy(40))
    missing = chunk([PROMPT[39]], 39, [0, 5, 2], "missing", greedy(40))
    result = runner.execute(StepPlan((swapped, missing)))
    assert result.drawn[swapped.key].token != next_token(PROMPT, VOCAB)
    assert missing.key in result.failed


def test_a_block_begun_anew_holds_nothing_of_its_earlier_owner() -> None:
    runner = ScriptedRunner(8, VOCAB)
    run(runner, [40], [0, 1, 2])
    runner.execute(StepPlan((chunk([1], 0, [0]),)))
    words = np.frombuffer(runner.kv.read_block(BlockId(0)), dtype=np.int32)
    assert words[0] == 1 and (words[1:] == UNWRITTEN).all()


def test_content_of_a_wrong_length_is_refused() -> None:
    with pytest.raises(KVCorrupt):
        ScriptedRunner(2, VOCAB).kv.write_block(BlockId(0), memoryview(b"short"))
