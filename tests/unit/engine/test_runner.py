"""Steps through the runner: plan in, result out."""

from dataclasses import replace

import pytest
import torch

from services.core.ids import BlockId
from services.core.plan import Chunk, Draw, StepPlan
from services.core.request import Sampling
from services.engine.interface import StepRunner
from services.engine.runner import ModelRunner
from services.engine.warm_up import warm_up
from tests.support.scripted_runner import ScriptedRunner
from tests.unit.engine.attention_cases import spoil
from tests.unit.engine.tiny_decoder import Pair, chunk, greedy

PROMPTS = {"short": [5], "middle": [3, 1, 4, 1, 5, 9, 2], "long": [(7 * at) % 97 for at in range(37)]}


def generate(runner: StepRunner, prompts: dict[str, list[int]], sampling: Sampling, count: int) -> dict[str, list[int]]:
    """All prompts in the first step, then `count - 1` steps of one token each."""
    tables = {name: list(range(16 * at, 16 * at + 16)) for at, name in enumerate(prompts)}
    tokens = {name: list(prompt) for name, prompt in prompts.items()}
    done = dict.fromkeys(prompts, 0)
    for _ in range(count):
        chunks: list[Chunk] = []
        for name, known in tokens.items():
            draw = Draw(sampling, position=len(known))
            chunks.append(chunk(known[done[name] :], done[name], tables[name], name, draw))
            done[name] = len(known)
        result = runner.execute(StepPlan(tuple(chunks)))
        for part in chunks:
            tokens[part.key.request_id].append(result.drawn[part.key].token)
    return {name: tokens[name][len(prompt) :] for name, prompt in prompts.items()}


def test_greedy_answers_are_those_of_transformers(llama: Pair) -> None:
    answers = generate(ModelRunner(llama.decoder, llama.cache(48)), PROMPTS, Sampling(temperature=0.0), 12)
    for name, prompt in PROMPTS.items():
        tokens = torch.tensor([prompt])
        theirs = llama.reference.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=12,
            min_new_tokens=12,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
        assert answers[name] == theirs[0, len(prompt) :].tolist()


def test_a_sampled_answer_is_the_same_alone_and_in_company(llama: Pair) -> None:
    sampling = Sampling(temperature=0.9, top_p=0.9, seed=77)
    together = generate(ModelRunner(llama.decoder, llama.cache(48)), PROMPTS, sampling, 16)
    for name, prompt in PROMPTS.items():
        alone = generate(ModelRunner(llama.decoder, llama.cache(16)), {name: prompt}, sampling, 16)
        assert alone[name] == together[name]


def test_only_chunks_with_a_draw_are_in_the_result(llama: Pair) -> None:
    runner = ModelRunner(llama.decoder, llama.cache(8))
    silent, speaking = chunk([1, 2, 3], 0, [0], "silent"), chunk([4], 0, [1], "speaking", greedy(1))
    result = runner.execute(StepPlan((silent, speaking)))
    assert set(result.drawn) == {speaking.key}
    assert not result.failed
    assert result.seconds > 0
    assert runner.execute(StepPlan((silent,))).drawn == {}


def test_a_request_whose_cache_broke_fails_alone(llama: Pair) -> None:
    runner = ModelRunner(llama.decoder, llama.cache(8))
    first = [chunk([1, 2, 3], 0, [at], name) for at, name in enumerate(("sound", "broken"))]
    runner.execute(StepPlan(tuple(first)))
    spoil(runner.kv, 2, 1)
    second = [chunk([4], 3, [at], name, greedy(4)) for at, name in enumerate(("sound", "broken"))]
    result = runner.execute(StepPlan(tuple(second)))
    assert set(result.drawn) == {second[0].key}
    assert set(result.failed) == {second[1].key}


def test_a_block_handed_to_another_engine_continues_the_request(llama: Pair) -> None:
    prompt = PROMPTS["long"]
    here, there = ModelRunner(llama.decoder, llama.cache(16)), ModelRunner(llama.decoder, llama.cache(30))
    whole = here.execute(StepPlan((chunk(prompt, 0, list(range(10)), draw=greedy(37)),)))
    tail = chunk(prompt[36:], 36, list(range(29, 19, -1)), draw=greedy(37))
    for source, target in enumerate(tail.blocks[:9]):
        there.kv.write_block(target, here.kv.read_block(BlockId(source)))
    assert there.execute(StepPlan((tail,))).drawn == whole.drawn


def test_a_table_too_short_for_its_chunk_is_a_fault_of_the_whole_step(llama: Pair) -> None:
    runner = ModelRunner(llama.decoder, llama.cache(8))
    with pytest.raises(IndexError):
        runner.execute(StepPlan((chunk([1] * 5, 0, [0], draw=greedy(5)),)))


def test_warm_up_costs_are_seconds_of_this_machine(llama: Pair) -> None:
    cost = warm_up(ModelRunner(llama.decoder, llama.cache(100)), llama.config.context)
    assert min(cost.fixed, cost.per_token, cost.per_token_context) >= 0
    assert 0 < cost.of([(16, 0)]) < 1


@pytest.mark.parametrize("num_blocks", [1, 3, 200])
def test_warm_up_stays_within_the_cache_and_the_context(num_blocks: int) -> None:
    runner = ScriptedRunner(num_blocks, vocab=10)
    warm_up(runner, longest=300)
    reached = max(part.start + len(part.tokens) for plan in runner.plans for part in plan.chunks)
    assert reached == min(16 * num_blocks, 300)


def test_a_ban_reaches_the_sampler(llama: Pair) -> None:
    runner = ModelRunner(llama.decoder, llama.cache(8))
    free = chunk([1, 2, 3], 0, [0], draw=greedy(3))
    token = runner.execute(StepPlan((free,))).drawn[free.key].token
    assert free.draw is not None
    bound = replace(free, draw=replace(free.draw, banned=frozenset({token})))
    assert runner.execute(StepPlan((bound,))).drawn[bound.key].token != token
