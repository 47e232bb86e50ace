from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.modelfiles.prepared import PreparedModel
from services.modelfiles.stored_tensor import BLOCK_LAYOUTS, Form, StoredTensor, data_bytes, data_shape

KINDS = {form: gguf.GGMLQuantizationType[form.name] for form in BLOCK_LAYOUTS}


def theirs(form: Form, rows: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.asarray(gguf.quants.dequantize(rows, KINDS[form]))


@given(st.sampled_from(list(KINDS)), st.integers(1, 5), st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_any_blocks_become_the_bits_that_the_library_makes_of_them(
    form: Form, rows: int, per_row: int, seed: int
) -> None:
    shape = (rows, 32 * per_row)
    # Random bytes: scales of every size, not finite ones among them.
    raw = np.random.default_rng(seed).integers(0, 256, data_shape(form, shape), dtype=np.uint8)
    ours = StoredTensor(form, shape, raw).floats()
    assert (ours.dtype, ours.shape) == (np.float32, shape)
    expected = theirs(form, raw)
    same = (ours.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(ours) & np.isnan(expected))
    assert same.all()


@pytest.mark.parametrize("form", KINDS)
def test_more_blocks_than_are_worked_on_at_once_are_whole(form: Form) -> None:
    values = np.random.default_rng(1).standard_normal((300, 512)).astype(np.float32)
    raw = gguf.quants.quantize(values, KINDS[form])
    floats = StoredTensor(form, values.shape, raw).floats()
    assert floats.tobytes() == theirs(form, raw).tobytes()
    np.testing.assert_allclose(floats, values, atol=0.5)


def test_rows_that_do_not_lie_together_are_read_too() -> None:
    raw = gguf.quants.quantize(np.random.default_rng(2).standard_normal((8, 64)).astype(np.float32), KINDS[Form.Q8_0])
    assert np.array_equal(StoredTensor(Form.Q8_0, (4, 64), raw[::2]).floats(), theirs(Form.Q8_0, raw)[::2])


def test_float32_is_not_copied() -> None:
    values = np.ones((2, 3), dtype=np.float32)
    assert StoredTensor(Form.FLOAT32, (2, 3), values).floats() is values


@pytest.mark.parametrize("shape", [(32,), (2, 33), (2, 2, 32), ()])
def test_a_quantized_tensor_is_a_matrix_of_whole_blocks(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="whole blocks"):
        data_bytes(Form.Q4_0, shape)


@pytest.mark.parametrize(
    ("form", "shape", "data"),
    [
        (Form.FLOAT32, (2, 3), np.ones((3, 2), np.float32)),
        (Form.FLOAT32, (2,), np.ones(2, np.float64)),
        (Form.BFLOAT16, (2,), np.ones(2, np.float16)),
        (Form.Q4_1, (1, 32), np.ones((1, 18), np.uint8)),
    ],
)
def test_data_of_another_form_or_shape_is_refused(form: Form, shape: tuple[int, ...], data: np.ndarray) -> None:
    with pytest.raises(ValueError, match="not that of the form"):
        StoredTensor(form, shape, data)


def test_the_default_model_is_kept_as_its_file_has_it(smollm2: PreparedModel, smollm2_gguf: Path) -> None:
    stored = smollm2.open_tensors()
    assert {tensor.form for tensor in stored.values()} == {Form.Q4_1, Form.Q8_0, Form.FLOAT32}
    assert stored["model.embed_tokens.weight"].form is Form.Q8_0
    size = sum(data_bytes(tensor.form, tensor.shape) for tensor in stored.values())
    assert size < smollm2_gguf.stat().st_size
