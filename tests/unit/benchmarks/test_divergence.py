"""The measure of quality."""

from pathlib import Path

import numpy as np
import pytest

from peers.divergence import ROWS_AT_ONCE, TEXTS, divergence, mean_divergence, texts_as_ids


def test_equal_distributions_do_not_diverge_however_far_their_logits_are_shifted() -> None:
    logits = np.random.default_rng(0).normal(size=(5, 40)).astype(np.float32)
    assert divergence(logits, logits + 3).max() < 1e-6


def test_the_divergence_of_two_coins_is_the_known_one() -> None:
    even, loaded = np.log([[0.5, 0.5]]).astype(np.float32), np.log([[0.9, 0.1]]).astype(np.float32)
    assert divergence(even, loaded)[0] == pytest.approx(0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(0.5 / 0.1), rel=1e-5)


def test_the_mean_is_over_all_rows_and_of_the_reference_first(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    ours, theirs = (draw.normal(size=(ROWS_AT_ONCE + 7, 30)).astype(np.float32) for _ in range(2))
    np.save(tmp_path / "ours.npy", ours)
    np.save(tmp_path / "theirs.npy", theirs)
    found = mean_divergence(tmp_path / "theirs.npy", tmp_path / "ours.npy")
    assert found == pytest.approx(divergence(theirs, ours).mean())
    assert found != pytest.approx(divergence(ours, theirs).mean(), rel=1e-6)


def test_logits_of_other_texts_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 4), np.float32))
    np.save(tmp_path / "b.npy", np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match=r"\[2, 4\]"):
        mean_divergence(tmp_path / "a.npy", tmp_path / "b.npy")


def test_the_texts_are_of_several_kinds() -> None:
    ids = texts_as_ids(lambda text: list(text.encode()))
    assert len(ids) == len(TEXTS) >= 5
    assert any("def " in text for text in TEXTS) and any(not text.isascii() for text in TEXTS)
