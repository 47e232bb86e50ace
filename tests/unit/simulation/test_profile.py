"""Profiles: figures that follow from shapes, by hand."""

from pathlib import Path

import pytest

from services.simulation.profile import ProfileError, load


def test_step_costs_follow_from_the_shape_and_the_machine() -> None:
    profile = load("a800_llama3_70b")
    # Per layer 8192 x (64 + 64 + 8 + 8) x 128 for attention and 3 x 8192 x 28672; the output matrix; no input table.
    parameters = 80 * (8192 * 144 * 128 + 3 * 8192 * 28672) + 8192 * 128256
    compute, memory = 8 * 312e12 * 0.5, 8 * 2.039e12 * 0.6
    cost = profile.prefill.cost
    assert cost.fixed == pytest.approx(parameters * 2 / memory + 0.004)
    assert cost.per_token == pytest.approx(2 * parameters / compute)
    assert cost.per_token_context == pytest.approx(4 * 80 * 64 * 128 / compute)
    assert cost.per_context == pytest.approx(327680 / memory)
    assert profile.token_bytes == 2 * 80 * 8 * 128 * 2
    assert profile.store_blocks * 512 == pytest.approx(1e12 / 327680, rel=1e-3)


def test_a_profile_that_is_not_there_or_not_whole_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="a800_llama3_70b"):
        load("nothing")
    (tmp_path / "half.toml").write_text('name = "half"\n')
    with pytest.raises(ProfileError, match="incomplete"):
        load(str(tmp_path / "half.toml"))
