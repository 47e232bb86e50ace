"""`Part` on the wire, without the copies that a general encoder makes: the bytes are the last field, and are taken
from where they are and left where they came.

    0a length piece | 0a length piece | ... | 12 length bytes
"""

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from services.core.errors import KVCorrupt
from services.pb import kvstore_pb2

_PIECE, _BYTES = 0x0A, 0x12


def packed(pieces: Sequence[kvstore_pb2.Piece], contents: Sequence[memoryview]) -> bytes:
    """What `Part(pieces=..., bytes=...)` serializes to, if the bytes are all `contents` in a row."""
    head = kvstore_pb2.Part(pieces=pieces).SerializeToString()
    size = sum(content.nbytes for content in contents)
    if not size:
        return head
    return b"".join((head, bytes((_BYTES,)), _varint(size), *contents))


def unpacked(raw: bytes) -> tuple[list[kvstore_pb2.Piece], memoryview]:
    """Pieces and bytes of a part. Raises KVCorrupt for what `packed` would not make."""
    view, at = memoryview(raw), 0
    pieces = []
    try:
        while at < len(view) and view[at] == _PIECE:
            size, begin = _length(view, at + 1)
            pieces.append(kvstore_pb2.Piece.FromString(bytes(view[begin : begin + size])))
            at = begin + size
        if at == len(view):
            return pieces, view[:0]
        size, begin = _length(view, at + 1)
    except (IndexError, DecodeError):
        raise KVCorrupt("a part is cut off") from None
    if view[at] != _BYTES or begin + size != len(view):
        raise KVCorrupt("a part is of another form")
    return pieces, view[begin:]


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number >= 0x80:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def _length(view: memoryview, at: int) -> tuple[int, int]:
    """A varint and where it ends. Raises IndexError if it does not."""
    number = shift = 0
    while view[at] >= 0x80:
        number |= (view[at] & 0x7F) << shift
        shift += 7
        at += 1
    return number | view[at] << shift, at + 1
