"""The KV format's spelling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.errors import KVIncompatible
from services.core.model_config import KVFormat

formats = st.builds(
    KVFormat, st.sampled_from(["float32", "float16"]), *(st.integers(1, most) for most in (99_999, 9999, 9999, 9999))
)


@given(formats)
def test_a_format_is_read_back_as_it_was_spelled(kv_format: KVFormat) -> None:
    assert KVFormat.parsed(str(kv_format)) == kv_format


@given(formats, formats)
def test_different_formats_are_spelled_differently(one: KVFormat, other: KVFormat) -> None:
    assert (str(one) == str(other)) == (one == other)


@pytest.mark.parametrize("text", ["", "float32", "int8/b16/l1/h1x2", "float32/b0/l1/h1x2", "float32/b16/l1/h1x2 "])
def test_a_format_of_no_known_form_is_refused(text: str) -> None:
    with pytest.raises(KVIncompatible):
        KVFormat.parsed(text)
