"""Blocks as tensors and as bytes."""

import numpy as np
import pytest
import torch

from services.core.errors import KVCorrupt
from services.core.ids import BlockId
from services.core.model_config import KVFormat
from services.engine.kv_cache import KVCache
from services.engine.kv_layer import LayerKV
from tests.unit.engine.tiny_decoder import CPU

FORMATS = [KVFormat("float32", 4, 3, 2, 8), KVFormat("float16", 16, 2, 1, 4), KVFormat("int8", 8, 3, 2, 6)]


@pytest.fixture(params=FORMATS, ids=str)
def cache(request: pytest.FixtureRequest) -> KVCache:
    """Every block full of other values."""
    cache = KVCache(request.param, num_blocks=5, device=CPU)
    form = cache.format
    blocks = torch.arange(5).repeat_interleave(form.block_size)
    offsets = torch.arange(form.block_size).repeat(5)
    for layer in range(form.layers):
        cache.layer(layer).write(*torch.randn(2, len(blocks), form.kv_heads, form.head_dim), blocks, offsets)
    return cache


def parts(layer: LayerKV) -> list[torch.Tensor]:
    """In the order of the format."""
    return [part for part in (layer.k, layer.v, layer.k_scale, layer.v_scale) if part is not None]


@pytest.mark.parametrize("hold", [bytes, bytearray], ids=["read-only", "writable"])
def test_a_block_comes_back_as_it_was_read(cache: KVCache, hold: type[bytes | bytearray]) -> None:
    other = KVCache(cache.format, num_blocks=3, device=CPU)
    other.write_block(BlockId(1), memoryview(hold(cache.read_block(BlockId(4)))))
    for layer in range(cache.format.layers):
        for there, here in zip(parts(other.layer(layer)), parts(cache.layer(layer)), strict=True):
            assert torch.equal(there[1], here[4]) and here[4].ne(0).any()
            assert there[[0, 2]].eq(0).all()


def test_the_bytes_of_a_block_are_all_layers_in_the_order_of_the_format(cache: KVCache) -> None:
    content = cache.read_block(BlockId(2))
    assert content.nbytes == cache.format.block_bytes
    assert content.readonly
    layers = [cache.layer(layer) for layer in range(cache.format.layers)]
    assert bytes(content) == b"".join(part[2].numpy().tobytes() for layer in layers for part in parts(layer))


def test_a_token_lies_where_the_format_says() -> None:
    form = KVFormat("int8", block_size=4, layers=2, kv_heads=2, head_dim=6)
    cache = KVCache(form, num_blocks=2, device=CPU)
    key = torch.tensor([[[1, 2, 3, 4, 5, 127.0], [254, 0, 0, 0, 0, 0]]])
    cache.layer(1).write(key, 2 * key, blocks=torch.tensor([1]), offsets=torch.tensor([3]))
    layer = np.frombuffer(cache.read_block(BlockId(1)), dtype=np.int8)[form.layer_bytes :]
    k, v = layer[:48].reshape(2, 6, 4), layer[48:96].reshape(2, 4, 6)
    k_scale, v_scale = layer[96:].view(np.float32).reshape(2, 2, 4)
    assert k[:, :, 3].tolist() == v[:, 3].tolist() == [[1, 2, 3, 4, 5, 127], [127, 0, 0, 0, 0, 0]]
    assert k_scale[:, 3].tolist() == [1, 2] and v_scale[:, 3].tolist() == [2, 4]
    assert not k[:, :, :3].any() and not v[:, :3].any()
    assert not any(cache.read_block(BlockId(0)))


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
