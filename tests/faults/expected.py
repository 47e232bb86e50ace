"""What each request must be answered: the compiled engine by itself, one request at a time, with nothing around it.

No batch, no cache, no process: a loop over one engine in this process. Its bits do not depend on how a prompt is cut
or on what runs beside it, so what a cluster answers is compared with `==`.
"""

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from services.core.engine_settings import EngineSettings
from services.core.ids import BlockId, RequestId, RequestKey
from services.core.plan import Chunk, Draw, History, StepPlan
from services.engine.interface import StepRunner
from services.engine.load import load_engine
from services.modelfiles.prepared import PreparedModel
from tests.faults.trace import Asked, with_stop, with_stop_id

KEY = RequestKey(RequestId("alone"))
STOP_SHARE = 0.15
"""Of requests that get a stop string, and again of those that get a stop id."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A complete answer."""

    ids: tuple[int, ...]
    text: str
    reason: str
    """`stop` or `length`."""


class Alone:
    """One engine; answers one request at a time."""

    def __init__(self, prepared: PreparedModel) -> None:
        self._stop_ids = prepared.stop_ids
        self._tokenizer = prepared.tokenizer()
        self._context = prepared.config.context
        blocks = -(-self._context // 16)
        self._blocks = tuple(BlockId(block) for block in range(blocks))
        self._runner: StepRunner = load_engine(prepared, EngineSettings(num_blocks=blocks, kind="compiled")).runner

    def answer(self, asked: Asked) -> Expected:
        """The answer to its end, whether or not the client stays so long."""
        stop_ids = asked.stop_ids if asked.ignores_eos else asked.stop_ids | self._stop_ids
        ids: list[int] = []
        while len(ids) < asked.max_tokens:
            ids.append(self._next(asked, ids, stop_ids))
            if ids[-1] in stop_ids and len(ids) > asked.min_tokens:
                return self._ended_by_id(asked, ids)
            if asked.stop and asked.stop in (text := self._tokenizer.decode(ids)):
                return Expected(tuple(ids), text[: text.index(asked.stop)], "stop")
        return Expected(tuple(ids), self._tokenizer.decode(ids), "length")

    def given_stops(self, asked: Sequence[Asked], seed: int = 0) -> list[Asked]:
        """The same requests, some of which now end at a text or a token that is in the middle of their answer."""
        rng = random.Random(seed)
        return [self._given_stop(rng, one) for one in asked]

    def _given_stop(self, rng: random.Random, asked: Asked) -> Asked:
        chance = rng.random()
        if chance > 2 * STOP_SHARE or asked.max_tokens < 3:
            return asked
        answer = self.answer(asked)
        if chance < STOP_SHARE:
            return with_stop_id(asked, answer.ids, rng.randrange(len(answer.ids)))
        stops = [stop for stop in _readable_parts(answer.text) if stop]
        return with_stop(asked, rng.choice(stops)) if stops else asked

    def _ended_by_id(self, asked: Asked, ids: list[int]) -> Expected:
        """The id that ends an answer is counted and never shown. A stop string may lie in what is shown."""
        return Expected(tuple(ids), self._tokenizer.decode(ids[:-1]), "stop")

    def _next(self, asked: Asked, answer: Sequence[int], stop_ids: frozenset[int]) -> int:
        tokens = (*asked.prompt, *answer)
        start = len(asked.prompt) + len(answer) - 1 if answer else 0
        banned = stop_ids if len(answer) < asked.min_tokens else frozenset[int]()
        history = None
        if asked.sampling.has_penalties:
            history = History(array("i", asked.prompt), array("i", answer))
        draw = Draw(asked.sampling, len(tokens), banned, history)
        chunk = Chunk(KEY, tokens[start:], start, self._blocks[: -(-len(tokens) // 16)], draw)
        return self._runner.execute(StepPlan((chunk,))).drawn[KEY].token


def _readable_parts(text: str) -> list[str]:
    """One to three characters in a row that are whole in any form of the text."""
    return [
        text[at : at + length]
        for at in range(len(text))
        for length in (1, 2, 3)
        if at + length <= len(text) and text[at : at + length].isascii()
    ]
