"""Distributions compared row by row, against sums written out."""

import math

import numpy as np
import pytest

from services.engine.quality.rows import compared, joined


def test_divergence_and_losses_are_those_of_the_definitions() -> None:
    reference = np.array([[0.0, 1.0, 2.0], [3.0, -1.0, 0.5]], np.float32)
    served = np.array([[0.5, 0.5, 2.5], [2.0, 2.5, 0.0]], np.float32)
    found = compared(reference, served, [2])
    for row in range(2):
        p, q = (_softmax(logits[row]) for logits in (reference, served))
        assert found.divergence[row] == pytest.approx(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
    assert found.reference_loss.tolist() == pytest.approx([-math.log(_softmax(reference[0])[2])])
    assert found.served_loss.tolist() == pytest.approx([-math.log(_softmax(served[0])[2])])
    assert found.agrees.tolist() == [True, False]


def test_a_shift_of_all_logits_changes_nothing() -> None:
    logits = np.random.default_rng(0).standard_normal((5, 100)).astype(np.float32)
    found = compared(logits, logits + 64, [1, 2, 3, 4])
    assert found.divergence == pytest.approx(0, abs=1e-10) and found.agrees.all()
    assert found.served_loss == pytest.approx(found.reference_loss, abs=1e-5)


def test_a_small_difference_is_not_lost_in_rounding() -> None:
    reference = np.zeros((1, 2), np.float32)
    served = np.array([[0.0, 1e-4]], np.float32)
    assert compared(reference, served, []).divergence[0] == pytest.approx(1e-8 / 8, rel=1e-3)


def test_tokens_without_probability_add_nothing_and_nan_stays_visible() -> None:
    reference = np.array([[0.0, -np.inf, 0.0]], np.float32)
    assert compared(reference, np.array([[0.0, -3.0, 0.0]], np.float32), []).divergence[0] == pytest.approx(
        math.log(2 + math.exp(-3)) - math.log(2)
    )
    assert np.isnan(compared(reference, np.full((1, 3), np.nan, np.float32), []).divergence[0])


def test_rows_are_joined_in_order() -> None:
    logits = np.eye(4, dtype=np.float32)
    whole = compared(logits, 2 * logits, [3, 2, 1])
    parts = joined([compared(logits[:2], 2 * logits[:2], [3, 2]), compared(logits[2:], 2 * logits[2:], [1])])
    for of_whole, of_parts in zip(whole, parts, strict=True):
        assert np.array_equal(of_whole, of_parts)


def _softmax(logits: np.ndarray) -> list[float]:
    powers = [math.exp(float(logit)) for logit in logits]
    return [power / sum(powers) for power in powers]
