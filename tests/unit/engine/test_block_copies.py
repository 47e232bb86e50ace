"""Whole blocks into and out of memory of others, for both kinds of KV cache."""

import pytest
import torch

from services.core.errors import KVCorrupt
from services.core.ids import BlockId
from services.core.model_config import KVFormat
from services.engine.compiled.kv_memory import KVMemory
from services.engine.interface import KVAccess
from services.engine.kv_cache import KVCache

FORMAT = KVFormat("float16", block_size=16, layers=2, kv_heads=2, head_dim=8)


@pytest.fixture(params=["compiled", "torch"])
def cache(request: pytest.FixtureRequest) -> KVAccess:
    if request.param == "compiled":
        return KVMemory(FORMAT, 3)
    return KVCache(FORMAT, 3, torch.device("cpu"))


def content() -> bytes:
    return bytes(n % 251 for n in range(FORMAT.block_bytes))


def test_what_is_copied_in_is_copied_out(cache: KVAccess) -> None:
    into = bytearray(FORMAT.block_bytes + 8)
    cache.copy_in(BlockId(1), memoryview(content()))
    cache.copy_out(BlockId(1), memoryview(into)[4:-4])
    assert bytes(into) == bytes(4) + content() + bytes(4)
    assert not any(cache.read_block(BlockId(0))) and not any(cache.read_block(BlockId(2)))


def test_what_comes_back_is_what_is_in_the_block_whatever_becomes_of_the_source(cache: KVAccess) -> None:
    source = bytearray(content())
    copy = cache.copy_in(BlockId(2), memoryview(source))
    source[:] = bytes(len(source))
    assert bytes(copy) == content() == bytes(cache.read_block(BlockId(2)))
    assert copy.readonly


def test_parts_are_copied_by_themselves(cache: KVAccess) -> None:
    middle = slice(3, FORMAT.block_bytes - 5)
    copy = cache.copy_in(BlockId(1), memoryview(content())[middle], middle)
    assert bytes(copy) == content()[middle]
    assert bytes(cache.read_block(BlockId(1))) == bytes(3) + content()[middle] + bytes(5)
    into = bytearray(2)
    cache.copy_out(BlockId(1), memoryview(into), slice(2, 4))
    assert bytes(into) == bytes(1) + content()[3:4]


@pytest.mark.parametrize("length", [3, 5])
def test_content_of_another_length_than_its_part_changes_nothing(cache: KVAccess, length: int) -> None:
    with pytest.raises(KVCorrupt):
        cache.copy_in(BlockId(0), memoryview(bytes([1] * length)), slice(4, 8))
    assert not any(cache.read_block(BlockId(0)))


@pytest.mark.parametrize("excess", [-1, 1])
def test_content_of_a_wrong_length_changes_nothing(cache: KVAccess, excess: int) -> None:
    with pytest.raises(KVCorrupt):
        cache.copy_in(BlockId(0), memoryview(bytes(FORMAT.block_bytes + excess)))
    assert not any(cache.read_block(BlockId(0)))
