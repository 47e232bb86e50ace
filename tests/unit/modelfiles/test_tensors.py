from dataclasses import replace

import numpy as np
import pytest

from services.core.model_config import ModelConfig, RopeScaling
from services.modelfiles.errors import ModelError
from services.modelfiles.ggml_blocks import Floats
from services.modelfiles.stored_tensor import Form, LazyTensor, StoredTensor
from services.modelfiles.tensors import EMBEDDING, HEAD, checked_tensors, expected_tensors

CONFIG = ModelConfig(
    architecture="qwen2",
    layers=2,
    hidden=8,
    intermediate=12,
    heads=2,
    kv_heads=1,
    head_dim=4,
    vocab=16,
    context=64,
    norm_eps=1e-5,
    rope_theta=1e4,
    rope_scaling=RopeScaling(),
    tied_embeddings=True,
    attention_bias=True,
)


EVERYTHING = replace(CONFIG, layers=1, tied_embeddings=False, output_bias=True, qk_norm=True)


def lazy(values: Floats) -> LazyTensor:
    stored = StoredTensor(Form.FLOAT32, values.shape, values)
    return LazyTensor(Form.FLOAT32, values.shape, lambda: stored)


def checkpoint(config: ModelConfig) -> dict[str, LazyTensor]:
    return {name: lazy(np.ones(shape, dtype=np.float32)) for name, shape in expected_tensors(config).items()}


def test_a_complete_checkpoint_is_returned_in_order() -> None:
    found = dict(reversed(checkpoint(CONFIG).items()))
    assert list(checked_tensors(CONFIG, found)) == list(expected_tensors(CONFIG))


@pytest.mark.parametrize("name", expected_tensors(EVERYTHING))
def test_every_missing_tensor_is_named(name: str) -> None:
    found = checkpoint(EVERYTHING)
    del found[name]
    with pytest.raises(ModelError, match=f"missing.*{name}"):
        checked_tensors(EVERYTHING, found)


@pytest.mark.parametrize("name", expected_tensors(EVERYTHING).keys() - expected_tensors(replace(CONFIG, layers=1)))
def test_what_only_other_models_have_is_left_over(name: str) -> None:
    found = checkpoint(EVERYTHING)
    config = replace(CONFIG, layers=1)
    with pytest.raises(ModelError, match=f"not part.*{name}|{name} differs"):
        checked_tensors(
            config,
            {kept: found[kept] for kept in expected_tensors(config)} | {name: lazy(np.zeros((16, 8), np.float32))},
        )


def test_a_left_over_tensor_is_named() -> None:
    found = checkpoint(CONFIG) | {"model.layers.2.mlp.up_proj.weight": lazy(np.ones((12, 8), dtype=np.float32))}
    with pytest.raises(ModelError, match=r"model\.layers\.2\.mlp\.up_proj\.weight"):
        checked_tensors(CONFIG, found)


def test_many_missing_tensors_are_a_short_message() -> None:
    with pytest.raises(ModelError, match="and 21 more") as caught:
        checked_tensors(CONFIG, {})
    assert len(str(caught.value)) < 400


def test_a_wrong_shape_is_named_with_both_shapes() -> None:
    found = checkpoint(CONFIG) | {"model.norm.weight": lazy(np.ones(9, dtype=np.float32))}
    with pytest.raises(ModelError, match=r"model\.norm\.weight has shape \[9\].*\[8\]"):
        checked_tensors(CONFIG, found)


def test_stored_rotary_frequencies_are_ignored() -> None:
    frequencies = lazy(np.ones(2, dtype=np.float32))
    found = checkpoint(CONFIG) | {"model.layers.0.self_attn.rotary_emb.inv_freq": frequencies}
    assert list(checked_tensors(CONFIG, found)) == list(expected_tensors(CONFIG))


def test_a_head_beside_tied_embeddings_may_repeat_them() -> None:
    found = checkpoint(CONFIG)
    assert HEAD not in checked_tensors(CONFIG, found | {HEAD: found[EMBEDDING]})


def test_a_head_in_another_form_may_repeat_the_embeddings() -> None:
    halves = StoredTensor(Form.FLOAT16, (16, 8), np.ones((16, 8), np.float16))
    found = checkpoint(CONFIG)
    assert HEAD not in checked_tensors(CONFIG, found | {HEAD: LazyTensor(Form.FLOAT16, (16, 8), lambda: halves)})


def test_a_head_that_differs_from_tied_embeddings_is_refused() -> None:
    with pytest.raises(ModelError, match="lm_head"):
        checked_tensors(CONFIG, checkpoint(CONFIG) | {HEAD: lazy(np.zeros((16, 8), dtype=np.float32))})
