"""Parts are written and read as the general encoder does, whatever is in them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.errors import KVCorrupt
from services.pb.kvstore_pb2 import Part, Piece
from services.runtime.part_wire import packed, unpacked

PIECES = st.builds(
    Piece,
    hash=st.binary(max_size=40),
    offset=st.integers(0, 2**64 - 1),
    size=st.integers(0, 2**64 - 1),
    checksum=st.integers(0, 2**64 - 1),
    refusal=st.text(max_size=20),
)


@given(st.lists(PIECES, max_size=4), st.lists(st.binary(max_size=300), max_size=3))
def test_what_is_packed_is_what_the_encoder_makes(pieces: list[Piece], contents: list[bytes]) -> None:
    whole = Part(pieces=pieces, bytes=b"".join(contents))
    raw = packed(pieces, [memoryview(content) for content in contents])
    assert raw == whole.SerializeToString()
    found, content = unpacked(raw)
    assert (found, bytes(content)) == (pieces, whole.bytes)


@given(st.lists(PIECES, min_size=1, max_size=2), st.binary(min_size=200, max_size=300), st.data())
def test_a_part_that_is_cut_off_is_corrupt_or_has_fewer_pieces(
    pieces: list[Piece], content: bytes, data: st.DataObject
) -> None:
    raw = packed(pieces, [memoryview(content)])
    cut = data.draw(st.integers(0, len(raw) - 1))
    try:
        found, rest = unpacked(raw[:cut])
    except KVCorrupt:
        return
    assert not len(rest) and found == pieces[: len(found)]


@given(st.binary(max_size=60))
def test_what_is_no_part_is_corrupt_and_never_worse(raw: bytes) -> None:
    with suppress(KVCorrupt):
        unpacked(raw)


def test_the_bytes_are_not_copied() -> None:
    raw = packed([], [memoryview(b"x" * 1000)])
    _, content = unpacked(raw)
    assert content.obj is raw


@pytest.mark.parametrize("raw", [b"\x12\x80", b"\x0a\x05ab", b"\x12\x03ab", b"\x1a\x01x", b"\x12\x01xy"])
def test_lengths_and_fields_that_do_not_fit_are_corrupt(raw: bytes) -> None:
    with pytest.raises(KVCorrupt):
        unpacked(raw)
