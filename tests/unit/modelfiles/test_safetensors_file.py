import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from safetensors.numpy import load_file, save_file

from services.modelfiles.errors import ModelError
from services.modelfiles.safetensors_file import open_safetensors, write_safetensors
from services.modelfiles.stored_tensor import Array, Form, LazyTensor, StoredTensor

ARRAYS = st.dictionaries(
    st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8),
    nps.arrays(np.float32, nps.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)),
    max_size=5,
)


BLOCK_BYTES = {Form.Q4_0: 18, Form.Q4_1: 20, Form.Q8_0: 34}


def lazy(values: Array, form: Form = Form.FLOAT32, shape: tuple[int, ...] | None = None) -> LazyTensor:
    stored = StoredTensor(form, shape or values.shape, values)
    return LazyTensor(form, stored.shape, lambda: stored)


def blocks(form: Form, rows: int, per_row: int) -> LazyTensor:
    """Rows of counting bytes in this form."""
    width = per_row * BLOCK_BYTES[form]
    values = np.arange(rows * width, dtype=np.uint8).reshape(rows, width)
    return lazy(values, form, (rows, 32 * per_row))


def raw_file(path: Path, header: object, values: bytes) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + values)
    return path


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(ARRAYS)
def test_what_is_written_is_read_by_us_and_by_the_library(tmp_path: Path, arrays: dict[str, Array]) -> None:
    path = tmp_path / "a.safetensors"
    path.unlink(missing_ok=True)
    write_safetensors(path, {name: lazy(values) for name, values in arrays.items()})
    ours = {name: tensor.read().floats() for name, tensor in open_safetensors(path).items()}
    theirs = load_file(path)
    assert ours.keys() == theirs.keys() == arrays.keys()
    for name, values in arrays.items():
        assert ours[name].tobytes() == theirs[name].tobytes() == values.tobytes()
        assert ours[name].shape == values.shape


def test_half_floats_are_kept_and_are_the_same_numbers(tmp_path: Path) -> None:
    values = np.array([[0.5, -2.0, 65504.0]], dtype=np.float16)
    save_file({"a": values}, tmp_path / "a.safetensors")
    read = open_safetensors(tmp_path / "a.safetensors")["a"].read()
    assert (read.form, read.shape, read.data.dtype) == (Form.FLOAT16, (1, 3), np.float16)
    assert read.floats().dtype == np.float32
    assert read.floats().tolist() == [[0.5, -2.0, 65504.0]]


def test_bfloat16_is_the_upper_half_of_float32(tmp_path: Path) -> None:
    exact = np.array([1.0, -0.15625, 3e38], dtype=np.float32)
    upper = (exact.view(np.uint32) >> 16).astype("<u2")
    line = {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}
    read = open_safetensors(raw_file(tmp_path / "a", {"a": line}, upper.tobytes()))["a"].read()
    assert read.form is Form.BFLOAT16
    assert read.data.tolist() == upper.tolist()
    assert read.floats().tolist() == (upper.astype(np.uint32) << 16).view(np.float32).tolist()


def test_every_form_comes_back_as_it_was_written(tmp_path: Path) -> None:
    tensors = {form.value: blocks(form, 3, 2) for form in BLOCK_BYTES}
    tensors["float16"] = lazy(np.arange(5, dtype=np.float16), Form.FLOAT16)
    tensors["bfloat16"] = lazy(np.arange(7, dtype=np.uint16), Form.BFLOAT16)
    tensors["float32"] = lazy(np.arange(3, dtype=np.float32))
    write_safetensors(tmp_path / "a", tensors)
    found = open_safetensors(tmp_path / "a")
    assert found.keys() == tensors.keys()
    for name, tensor in found.items():
        written, read = tensors[name].read(), tensor.read()
        assert (tensor.form, tensor.shape) == (read.form, read.shape) == (written.form, written.shape)
        assert read.data.dtype == written.data.dtype
        assert read.data.tolist() == written.data.tolist()


def test_every_tensor_begins_where_its_values_are_aligned(tmp_path: Path) -> None:
    odd = {
        "z": blocks(Form.Q4_0, 1, 1),
        "b": lazy(np.ones(1, np.float16), Form.FLOAT16),
        "a": lazy(np.ones(1, np.float32)),
    }
    write_safetensors(tmp_path / "a", odd)
    for tensor in open_safetensors(tmp_path / "a").values():
        assert tensor.read().data.flags.aligned


def test_blocks_are_bytes_to_the_library_and_cannot_be_written_to(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a", {"a": blocks(Form.Q4_1, 2, 3)})
    (theirs,) = load_file(tmp_path / "a").values()
    ours = open_safetensors(tmp_path / "a")["a"].read()
    assert (theirs.dtype, theirs.shape, ours.shape) == (np.uint8, (2, 60), (2, 96))
    assert not ours.data.flags.writeable


def test_bytes_that_nobody_says_are_blocks_are_refused_when_read(tmp_path: Path) -> None:
    save_file({"a": np.ones((2, 40), dtype=np.uint8)}, tmp_path / "a", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="a is U8"):
        open_safetensors(tmp_path / "a")["a"].read()


@pytest.mark.parametrize("shape", [[2, 21], [40], [1, 2, 20]])
def test_bytes_that_are_no_rows_of_blocks_are_refused(tmp_path: Path, shape: list[int]) -> None:
    line = {"dtype": "U8", "shape": shape, "data_offsets": [0, int(np.prod(shape))]}
    header = {"__metadata__": {"a": "q4_1"}, "a": line}
    with pytest.raises(ModelError, match="damaged"):
        open_safetensors(raw_file(tmp_path / "a", header, bytes(100)))


def test_a_tensor_that_is_not_what_was_announced_is_not_written(tmp_path: Path) -> None:
    stored = StoredTensor(Form.FLOAT32, (3,), np.ones(3, np.float32))
    with pytest.raises(ModelError, match="wrong is not of the form and shape"):
        write_safetensors(tmp_path / "a", {"wrong": LazyTensor(Form.FLOAT32, (4,), lambda: stored)})


def test_writing_to_a_view_changes_neither_the_file_nor_another_view(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_safetensors(path, {"a": lazy(np.ones(4, dtype=np.float32))})
    open_safetensors(path)["a"].read().floats()[:] = 7
    assert open_safetensors(path)["a"].read().floats().tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("kept", [0, 5, 40, -1])
def test_a_truncated_file_is_refused_by_name(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a": np.ones(64, dtype=np.float32)}, path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"a\.safetensors is truncated"):
        open_safetensors(path)


@pytest.mark.parametrize(
    "line",
    [
        {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
    ],
)
def test_a_tensor_whose_place_contradicts_its_shape_is_refused(tmp_path: Path, line: dict[str, object]) -> None:
    with pytest.raises(ModelError, match="wrong does not have the size"):
        open_safetensors(raw_file(tmp_path / "a", {"wrong": line}, bytes(8)))


@pytest.mark.parametrize(
    "header", [[], {"a": 1}, {"a": {"dtype": "F32"}}, {"a": {"dtype": "F32", "shape": 1, "data_offsets": []}}]
)
def test_a_header_of_another_form_is_refused(tmp_path: Path, header: object) -> None:
    with pytest.raises(ModelError, match="damaged"):
        open_safetensors(raw_file(tmp_path / "a", header, b""))


def test_another_dtype_is_refused_by_name_when_it_is_read(tmp_path: Path) -> None:
    save_file({"a": np.ones(4, dtype=np.int64)}, tmp_path / "a.safetensors")
    with pytest.raises(ModelError, match="a is I64"):
        open_safetensors(tmp_path / "a.safetensors")["a"].read()
