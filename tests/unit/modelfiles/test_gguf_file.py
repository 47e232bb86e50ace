import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.modelfiles.errors import ModelError
from services.modelfiles.gguf_file import open_gguf
from tests.support.tiny_gguf import write_tiny_gguf

HEAD = b"GGUF" + struct.pack("<I", 3)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def file_of(path: Path, values: list[bytes], tensors: list[bytes], content: bytes = b"") -> Path:
    head = HEAD + struct.pack("<QQ", len(tensors), len(values)) + b"".join(values + tensors)
    path.write_bytes(head + bytes(-len(head) % 32) + content)
    return path


def tensor(name: str, dimensions: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, offset)


@pytest.mark.parametrize("kind", [gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q4_1])
def test_a_file_is_read_as_the_library_reads_it(tmp_path: Path, tiny: Path, kind: gguf.GGMLQuantizationType) -> None:
    path = write_tiny_gguf(tiny, tmp_path / "a.gguf", quantization=kind, metadata={"x.flag": True, "x.text": "漢"})
    theirs, ours = gguf.GGUFReader(path), open_gguf(path)
    assert ours.metadata == {
        key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")
    }
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        found = ours.tensors[tensor.name]
        assert (found.kind, found.shape) == (tensor.tensor_type, tuple(reversed(tensor.shape.tolist())))
        assert found.raw.tobytes() == tensor.data.tobytes()
        assert not found.raw.flags.writeable


SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@pytest.mark.parametrize(("kind", "code"), SCALARS.items())
def test_every_type_of_value_is_read_alone_and_in_a_list(tmp_path: Path, kind: int, code: str) -> None:
    one = True if code == "?" else 1.5 if code in "fd" else 2 ** (8 * struct.calcsize(code) - 1) - 1
    single = text("one") + struct.pack(f"<I{code}", kind, one)
    listed = text("list") + struct.pack(f"<IIQ{code}{code}", 9, kind, 2, one, one)
    metadata = open_gguf(file_of(tmp_path / "a.gguf", [single, listed], [])).metadata
    assert metadata == {"one": one, "list": [one, one]}
    assert type(metadata["one"]) is type(one)


@pytest.mark.parametrize("kept", range(0, 200, 7))
def test_a_file_cut_anywhere_in_its_header_is_refused(tmp_path: Path, tiny: Path, kept: int) -> None:
    path = write_tiny_gguf(tiny, tmp_path / "a.gguf")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"a\.gguf is truncated"):
        open_gguf(path)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=200), st.sampled_from([b"", HEAD, HEAD + struct.pack("<QQ", 1, 1), HEAD + bytes(8) + b"\x01"])
)
def test_any_bytes_are_a_file_or_an_error_of_ours(tmp_path: Path, content: bytes, head: bytes) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(head + content)
    try:
        open_gguf(path)
    except ModelError as error:
        assert "a.gguf" in str(error)


@pytest.mark.parametrize(
    ("values", "tensors", "named"),
    [
        ([text("a") + struct.pack("<II", 4, 1)] * 2, [], "truncated or not"),
        ([text("a") + struct.pack("<I", 13)], [], "truncated or not"),
        ([text("a") + struct.pack("<IIQ", 9, 9, 1)], [], "truncated or not"),
        ([text("a") + struct.pack("<IIQ", 9, 8, 2**60)], [], "truncated or not"),
        ([text("general.alignment") + struct.pack("<II", 4, 24)], [], "truncated or not"),
        ([], [tensor("a", [])], "truncated or not"),
        ([], [tensor("a", [1] * 5)], "truncated or not"),
        ([], [tensor("a", [4]), tensor("a", [4])], "two tensors of one name"),
        ([], [tensor("a", [4], kind=999)], "a is stored as type 999"),
        ([], [tensor("a", [33], kind=3)], "the rows of a are not whole blocks of Q4_1"),
        ([], [tensor("a", [5])], "a ends after the file"),
        ([], [tensor("a", [4], offset=2**63)], "a ends after the file"),
        ([], [tensor("a", [2**62, 2**62])], "a ends after the file"),
    ],
)
def test_a_header_that_cannot_be_is_refused(
    tmp_path: Path, values: list[bytes], tensors: list[bytes], named: str
) -> None:
    with pytest.raises(ModelError, match=named):
        open_gguf(file_of(tmp_path / "a.gguf", values, tensors, bytes(16)))


@pytest.mark.parametrize("version", [1, 4, 0x03000000])
def test_another_version_or_byte_order_is_refused(tmp_path: Path, version: int) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, 0))
    with pytest.raises(ModelError, match=r"a\.gguf"):
        open_gguf(tmp_path / "a.gguf")


def test_tensors_lie_at_the_alignment_that_the_file_says(tmp_path: Path) -> None:
    alignment = text("general.alignment") + struct.pack("<II", 4, 64)
    path = file_of(tmp_path / "a.gguf", [alignment], [tensor("a", [2])])
    head = path.read_bytes()
    path.write_bytes(head + bytes(-len(head) % 64) + np.array([1.5, -2.0], np.float32).tobytes())
    assert open_gguf(path).tensors["a"].raw.view(np.float32).tolist() == [1.5, -2.0]
