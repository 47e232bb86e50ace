"""The torch engine with weights in less than float32."""

from dataclasses import replace

import pytest
import torch

from services.engine.backend import Backend
from services.engine.matrix import Int8Matrix
from services.engine.model import LlamaDecoder
from services.engine.torch_backend import TorchBackend
from services.engine.triton.backend import TritonBackend
from services.engine.weight_forms import WeightForm, in_form
from services.engine.weights import DecoderWeights
from tests.unit.engine.tiny_decoder import CPU, Pair, chunk, make_pair

PROMPT = [(17 * at * at + 5) % 97 for at in range(9)]


@pytest.fixture(scope="module")
def pair() -> Pair:
    return make_pair("qwen2", num_hidden_layers=2)


def logits(pair: Pair, form: WeightForm, backend: Backend) -> torch.Tensor:
    weights = in_form(DecoderWeights.assemble(pair.config, pair.arrays, CPU), form)
    served = replace(pair, decoder=LlamaDecoder(pair.config, weights, backend))
    return served.logits([chunk(PROMPT, 0, [2, 0, 1])], served.cache(3))


def test_no_weight_is_off_by_more_than_half_its_rows_scale() -> None:
    matrix = torch.randn(20, 30)
    matrix[3] = 0
    nearest = Int8Matrix.nearest(matrix)
    assert ((nearest.floats() - matrix).abs() <= 0.5001 * matrix.abs().amax(dim=1, keepdim=True) / 127).all()
    assert nearest.values.dtype == torch.int8


@pytest.mark.parametrize(("form", "off"), [("float32", 1e-4), ("float16", 0.02), ("int8", 0.15)])
def test_logits_stay_near_those_of_transformers(pair: Pair, form: WeightForm, off: float) -> None:
    exact = pair.expected(PROMPT)
    assert (logits(pair, form, TorchBackend()).float() - exact).abs().max() < off * exact.std()


@pytest.mark.parametrize(("form", "off"), [("float16", 0.02), ("int8", 1e-4)])
def test_kernels_and_torch_agree(pair: Pair, form: WeightForm, off: float) -> None:
    theirs = logits(pair, form, TorchBackend())
    ours = logits(pair, form, TritonBackend())
    assert ours.dtype == theirs.dtype
    assert (ours - theirs).abs().max() < off * theirs.std()


def test_tied_embeddings_stay_one_tensor_in_float16() -> None:
    tied = make_pair()
    weights = in_form(DecoderWeights.assemble(tied.config, tied.arrays, CPU), "float16")
    assert weights.head is weights.embedding
