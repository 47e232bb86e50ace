"""The KV format's spelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.errors import KVIncompatible
from services.core.model_config import KVFormat

FOREIGN = [
    "",
    "float32",
    "int4/kt1/b16/l1/h1x2",
    "float32/kt1/b0/l1/h1x2",
    "float32/kt1/b16/l1/h1x2 ",
    "float32/b16/l1/h1x2",  # another order of values
    "float32/kt2/b16/l1/h1x2",
]

formats = st.builds(
    KVFormat,
    st.sampled_from(["float32", "float16", "int8"]),
    *(st.integers(1, most) for most in (99_999, 9999, 9999, 9999)),
)


@given(formats)
def test_a_format_is_read_back_as_it_was_spelled(kv_format: KVFormat) -> None:
    assert KVFormat.parsed(str(kv_format)) == kv_format


@given(formats, formats)
def test_different_formats_are_spelled_differently(one: KVFormat, other: KVFormat) -> None:
    assert (str(one) == str(other)) == (one == other)


@pytest.mark.parametrize("text", FOREIGN)
def test_a_format_of_no_known_form_is_refused(text: str) -> None:
    with pytest.raises(KVIncompatible):
        KVFormat.parsed(text)


@pytest.mark.parametrize(("dtype", "vector"), [("float32", 4 * 64), ("float16", 2 * 64), ("int8", 64 + 4)])
def test_a_block_holds_k_and_v_of_every_layer_head_and_token(dtype: str, vector: int) -> None:
    assert KVFormat(dtype, 16, layers=30, kv_heads=3, head_dim=64).block_bytes == 30 * 2 * 3 * 16 * vector
