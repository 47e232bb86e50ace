"""What engines say of their memory, against what is known of it."""

from pathlib import Path

import numpy as np
import pytest

from services.core.plan import StepPlan
from services.engine.torch_load import TorchSettings, load_torch
from services.modelfiles.prepared import PreparedModel
from tests.unit.engine.compiled.engines import chunk, engine, tiny_prepared

MEBIBYTE = 1 << 20


@pytest.fixture
def prepared(tmp_path: Path) -> PreparedModel:
    """Large enough that pages hardly matter."""
    return tiny_prepared(tmp_path, hidden=256, vocab=4096)


def test_weights_that_a_step_has_read_are_resident_and_shared(prepared: PreparedModel) -> None:
    runner = engine(prepared, weights="int8")
    runner.execute(StepPlan((chunk("r", range(3, 40), 0, [0, 1, 2]),)))
    found = runner.memory()
    # The last norm is read where the model's own file has it; those of the layers are copied together.
    assert found.weights_mapped == runner.weights.matrix_bytes + runner.weights.norm.nbytes
    assert found.weights_private < 64 << 10


def test_packed_weights_that_cannot_be_kept_on_disk_are_private(prepared: PreparedModel) -> None:
    (prepared.directory / "packed").write_text("in the way")
    runner = engine(prepared, weights="int8")
    found = runner.memory()
    assert found.weights_mapped == runner.weights.norm.nbytes
    assert found.weights_private >= runner.weights.matrix_bytes


def test_blocks_of_the_cache_take_memory_once_they_are_written(prepared: PreparedModel) -> None:
    # So many that the C heap has no such piece to give again; the last of them, since it may begin with a used one.
    runner = engine(prepared, num_blocks=8192)
    size, before = runner.kv.format.block_bytes, runner.memory()
    assert before.kv_reserved == 8192 * size and before.kv < before.kv_reserved / 2
    content = memoryview(bytes(size))
    for block in range(8000, 8100):
        runner.kv.write_block(block, content)
    grown = runner.memory().kv - before.kv
    # Where the system gives huge pages, their neighbours come with them.
    assert 100 * size - MEBIBYTE < grown <= 100 * size + 4 * MEBIBYTE


def test_buffers_of_a_step_grow_with_its_rows(prepared: PreparedModel) -> None:
    runner = engine(prepared)
    before = runner.memory().step
    runner.execute(StepPlan((chunk("r", [3] * 300, 0, range(20)),)))
    rows = 512 * (6 * 256 + 2 * 256 + 2 * 256) * 4
    assert rows // 4 < runner.memory().step - before < 2 * rows


def test_the_torch_engine_counts_every_weight_once(prepared: PreparedModel) -> None:
    loaded = load_torch(prepared, TorchSettings(num_blocks=64))
    for block in range(64):
        loaded.cache.write_block(block, memoryview(np.ones(loaded.format.block_bytes, np.uint8)))
    assert np.isfinite(loaded.decoder.weights.embedding.sum().item())  # reads all of it
    loaded.runner.execute(StepPlan((chunk("r", range(3, 40), 0, [0, 1, 2]),)))
    found = loaded.runner.memory()
    parameters = sum(weights.size for weights in prepared.open_weights().values())
    assert found.weights_mapped + found.weights_private == 4 * parameters
    assert found.weights_mapped > 0 and found.weights_private > 0  # q, k and v become one matrix, others stay
    assert found.kv == found.kv_reserved == 64 * loaded.format.block_bytes
