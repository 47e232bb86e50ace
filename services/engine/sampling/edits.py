"""Changes to a row's logits before the draw: bans, then bias, then penalties.

Each of the three is computed in float64 and rounded to the row's float32. The penalties are those of their inventors
as vLLM applies them: repetition (CTRL, Keskar et al. 2019; Hugging Face's `repetition_penalty`) over prompt and answer,
then frequency and presence (OpenAI's) over the answer alone. Ids beyond the vocabulary change nothing.
"""

import numpy as np
from numpy.typing import NDArray

from services.core.plan import Draw, History
from services.core.request import Sampling
from services.engine.jit import inner, outer

Row = NDArray[np.float32]
Ids = NDArray[np.int32]


def edit(row: Row, draw: Draw) -> None:
    """Changes `row` `[vocab]` in place as `draw` asks."""
    if draw.banned:
        ids = np.fromiter(draw.banned, np.int64, len(draw.banned))
        row[ids[(ids >= 0) & (ids < len(row))]] = -np.inf
    if draw.sampling.logit_bias:
        _add_bias(row, draw.sampling)
    if draw.history is not None:
        _penalize(row, draw.sampling, draw.history)


def _add_bias(row: Row, sampling: Sampling) -> None:
    ids, bias = (np.array(column) for column in zip(*sampling.logit_bias, strict=True))
    is_known = (ids >= 0) & (ids < len(row))
    with np.errstate(over="ignore"):  # a row that overflows is found out where its best token is looked for
        row[ids[is_known]] = row[ids[is_known]].astype(np.float64) + bias[is_known]


def _penalize(row: Row, sampling: Sampling, history: History) -> None:
    prompt, answer = (np.asarray(ids, dtype=np.int32) for ids in (history.prompt, history.answer))
    seen = np.zeros(len(row), np.int32)
    if sampling.repetition_penalty != 1.0:
        weaken_repeated(row, prompt, answer, sampling.repetition_penalty, seen)
    if sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0:
        weaken_frequent(row, answer, sampling.frequency_penalty, sampling.presence_penalty, seen)


@outer
def weaken_repeated(row: Row, prompt: Ids, answer: Ids, penalty: float, seen: Ids) -> None:
    """Once for every token of prompt or answer. `seen` `[vocab]` is 0 before and after."""
    for ids in (prompt, answer):
        for token in ids:
            if 0 <= token < len(row) and not seen[token]:
                seen[token] = 1
                logit = np.float64(row[token])
                row[token] = np.float32(logit / penalty if logit > 0 else logit * penalty)
    _forget(prompt, seen)
    _forget(answer, seen)


@outer
def weaken_frequent(row: Row, answer: Ids, frequency: float, presence: float, seen: Ids) -> None:
    """Once for every token of the answer, by how often it is there. `seen` `[vocab]` is 0 before and after."""
    for token in answer:
        if 0 <= token < len(row):
            seen[token] += 1
    for token in answer:
        if 0 <= token < len(row) and seen[token]:
            row[token] = np.float32(np.float64(row[token]) - frequency * seen[token] - presence)
            seen[token] = 0


@inner
def _forget(ids: Ids, seen: Ids) -> None:
    for token in ids:
        if 0 <= token < len(seen):
            seen[token] = 0
