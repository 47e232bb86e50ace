"""Logits after every token of a prompt, some rows at a time."""

from pathlib import Path

import numpy as np
import pytest

from services.engine.pieces import LOGIT_ROWS
from services.engine.quality.subject import whole_prompt
from services.engine.torch_load import TorchSettings, load_torch
from tests.unit.engine.compiled.engines import chunk, engine, tiny_prepared
from tests.unit.engine.quality.pairs import prompt

TOKENS = prompt(7, length=2 * LOGIT_ROWS + 9).tokens


@pytest.mark.parametrize("kind", ["compiled", "torch"])
def test_they_come_in_order_a_bounded_number_at_a_time(kind: str, tmp_path: Path) -> None:
    prepared = tiny_prepared(tmp_path)
    runner = engine(prepared) if kind == "compiled" else load_torch(prepared, TorchSettings(num_blocks=16)).runner
    parts = [part.copy() for part in runner.every_logits(whole_prompt(TOKENS, 16))]
    assert [len(part) for part in parts] == [LOGIT_ROWS, LOGIT_ROWS, 9]


def test_they_are_bit_for_bit_those_of_steps_that_draw(tmp_path: Path) -> None:
    runner = engine(tiny_prepared(tmp_path))
    found = np.concatenate([part.copy() for part in runner.every_logits(whole_prompt(TOKENS, 16))])
    blocks = range(20, 20 + len(TOKENS) // 16 + 1)
    for at, token in enumerate(TOKENS):
        assert np.array_equal(runner.logits([chunk("r", [token], at, blocks)])[0], found[at])
