"""Blocks as tensors and as bytes."""

import numpy as np
import pytest
import torch

from services.core.errors import KVCorrupt
from services.core.ids import BlockId
from services.core.model_config import KVFormat
from services.engine.kv_cache import KVCache
from tests.unit.engine.tiny_decoder import CPU

FORMATS = [KVFormat("float32", 4, 3, 2, 8), KVFormat("float16", 16, 2, 1, 4)]


@pytest.fixture(params=FORMATS, ids=str)
def cache(request: pytest.FixtureRequest) -> KVCache:
    cache = KVCache(request.param, num_blocks=5, device=CPU)
    for layer in range(cache.format.layers):
        cache.layer(layer)[:] = torch.randn(cache.layer(layer).shape)
    return cache


@pytest.mark.parametrize("hold", [bytes, bytearray], ids=["read-only", "writable"])
def test_a_block_comes_back_as_it_was_read(cache: KVCache, hold: type[bytes | bytearray]) -> None:
    other = KVCache(cache.format, num_blocks=3, device=CPU)
    other.write_block(BlockId(1), memoryview(hold(cache.read_block(BlockId(4)))))
    for layer in range(cache.format.layers):
        assert torch.equal(other.layer(layer)[1], cache.layer(layer)[4])
        assert other.layer(layer)[[0, 2]].eq(0).all()


def test_the_bytes_of_a_block_are_all_layers_in_the_order_of_the_format(cache: KVCache) -> None:
    content = cache.read_block(BlockId(2))
    assert content.nbytes == cache.format.block_bytes
    assert content.readonly
    values = np.frombuffer(content, dtype=cache.format.dtype).reshape(cache.format.layers, -1)
    for layer in range(cache.format.layers):
        assert (values[layer] == cache.layer(layer)[2].flatten().numpy()).all()


@pytest.mark.parametrize("excess", [-1, 1])
def test_content_of_a_wrong_length_is_refused_and_nothing_written(cache: KVCache, excess: int) -> None:
    before = bytes(cache.read_block(BlockId(0)))
    with pytest.raises(KVCorrupt):
        cache.write_block(BlockId(0), memoryview(bytes(cache.format.block_bytes + excess)))
    assert bytes(cache.read_block(BlockId(0))) == before


def test_clearing_leaves_the_other_blocks_alone(cache: KVCache) -> None:
    kept = bytes(cache.read_block(BlockId(2)))
    cache.clear(torch.tensor([1, 3]))
    assert not any(cache.read_block(BlockId(1))) and not any(cache.read_block(BlockId(3)))
    assert bytes(cache.read_block(BlockId(2))) == kept
