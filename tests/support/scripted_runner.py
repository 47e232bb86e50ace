"""A `StepRunner` without a model, whose next token is a pure function of the request's tokens.

It keeps nothing but blocks: a block's bytes are its tokens, and the next token is computed from what is read back
through the chunk's block table. A block that is lost, stale, mixed up or handed over wrongly therefore changes the
tokens, as it would with a real engine.
"""

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from services.core.errors import KVCorrupt
from services.core.ids import BlockId
from services.core.model_config import WHOLE, KVFormat
from services.core.plan import Chunk, Draw, Drawn, StepPlan, StepResult, TokenLogprobs

UNWRITTEN = -1

SMALLEST_FORMAT = KVFormat("float32", block_size=16, layers=1, kv_heads=1, head_dim=2)


def next_token(tokens: Sequence[int], vocab: int, banned: frozenset[int] = frozenset()) -> int:
    """What the scripted engine draws after `tokens`: depends on every token and its place."""
    token = sum((place + 1) * (token + 1) for place, token in enumerate(tokens)) % vocab
    while token in banned:
        token = (token + 1) % vocab
    return token


def continuation(prompt: Sequence[int], count: int, vocab: int) -> list[int]:
    """The `count` tokens that a request without bans gets."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens, vocab))
    return tokens[len(prompt) :]


def scripted_logprobs(token: int, most: int | None) -> TokenLogprobs | None:
    """What the scripted engine reports of a token: a pure function of both."""
    if most is None:
        return None
    return TokenLogprobs(-float(token), tuple((token + at, -float(token + at)) for at in range(most)))


class ScriptedCache:
    """Blocks of int32 words, one token each at the front. Implements `interface.KVAccess`."""

    def __init__(self, kv_format: KVFormat, num_blocks: int) -> None:
        self._format = kv_format
        self._words = np.full((num_blocks, kv_format.block_bytes // 4), UNWRITTEN, dtype=np.int32)

    @property
    def format(self) -> KVFormat:
        return self._format

    @property
    def num_blocks(self) -> int:
        return len(self._words)

    def read_block(self, block: BlockId) -> memoryview:
        return memoryview(self._words[block]).cast("B").toreadonly()

    def write_block(self, block: BlockId, content: memoryview) -> None:
        if content.nbytes != self._format.block_bytes:
            raise KVCorrupt(f"a block has {content.nbytes} bytes where its format has {self._format.block_bytes}")
        self._words[block] = np.frombuffer(content, dtype=np.int32)

    def copy_out(self, block: BlockId, into: memoryview, part: slice = WHOLE) -> None:
        into[:] = self.read_block(block)[part]

    def copy_in(self, block: BlockId, content: memoryview, part: slice = WHOLE) -> memoryview:
        held = memoryview(bytearray(self.read_block(block)))
        if content.nbytes != held[part].nbytes:
            raise KVCorrupt(f"there are {content.nbytes} bytes for {held[part].nbytes} of a block")
        held[part] = content
        self.write_block(block, held)
        return held[part].toreadonly()

    def store(self, chunk: Chunk) -> None:
        """Put a chunk's tokens at their positions; a block begun anew loses what it held."""
        for position, token in enumerate(chunk.tokens, start=chunk.start):
            block, offset = divmod(position, self._format.block_size)
            if offset == 0:
                self._words[chunk.blocks[block]] = UNWRITTEN
            self._words[chunk.blocks[block], offset] = token

    def tokens(self, blocks: Sequence[BlockId], count: int) -> list[int]:
        """The first `count` tokens of a block table."""
        words = self._words[list(blocks), : self._format.block_size].ravel()
        return [int(word) for word in words[:count]]


class ScriptedRunner:
    """Implements `interface.StepRunner`. `vocab` is at least 2 and at most 2^31 - 1."""

    def __init__(self, num_blocks: int, vocab: int, kv_format: KVFormat = SMALLEST_FORMAT) -> None:
        self._cache = ScriptedCache(kv_format, num_blocks)
        self._vocab = vocab
        self.plans: list[StepPlan] = []
        """Every plan executed, in order."""
        self.deadly: int | None = None
        """A prompt that begins with this token breaks the engine that computes it."""

    @property
    def kv(self) -> ScriptedCache:
        return self._cache

    def execute(self, plan: StepPlan) -> StepResult:
        began = perf_counter()
        self.plans.append(plan)
        result = StepResult(drawn={})
        if any(chunk.start == 0 and chunk.tokens[0] == self.deadly for chunk in plan.chunks):
            raise RuntimeError("a deadly prompt")
        for chunk in plan.chunks:
            self._cache.store(chunk)
        for chunk in plan.chunks:
            if chunk.draw is not None:
                self._draw(chunk, chunk.draw, result)
        return StepResult(result.drawn, result.failed, perf_counter() - began)

    def _draw(self, chunk: Chunk, draw: Draw, result: StepResult) -> None:
        known = self._cache.tokens(chunk.blocks, chunk.start + len(chunk.tokens))
        if UNWRITTEN in known:
            result.failed[chunk.key] = f"position {known.index(UNWRITTEN)} was never written"
        else:
            token = next_token(known, self._vocab, draw.banned)
            result.drawn[chunk.key] = Drawn(token, scripted_logprobs(token, draw.sampling.logprobs))
