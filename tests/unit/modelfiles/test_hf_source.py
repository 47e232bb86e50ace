import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch as torch_files
import torch
from safetensors.numpy import load_file, save_file

from services.modelfiles.errors import ModelError
from services.modelfiles.hf_source import read_hf
from services.modelfiles.prepare import prepare
from services.modelfiles.prepared import PreparedModel
from services.modelfiles.stored_tensor import Form
from services.modelfiles.tensors import checked_tensors
from tests.support.tiny_model import CLASSES, write_tiny_hf_model

SHARDS = 3


def edit(path: Path, **changes: object) -> None:
    value = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(value | changes))


def shard(directory: Path) -> dict[str, str]:
    """Split the weights over three files with an index; returns the index."""
    weights = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    shard_of = {name: f"model-{at % SHARDS}.safetensors" for at, name in enumerate(weights)}
    for file in set(shard_of.values()):
        save_file({name: weights[name] for name in weights if shard_of[name] == file}, directory / file)
    edit(directory / "model.safetensors.index.json", weight_map=shard_of)
    return shard_of


def weights(directory: Path) -> dict[str, Any]:
    source = read_hf(directory)
    return {name: tensor.read().floats() for name, tensor in checked_tensors(source.config, source.tensors).items()}


def assert_same(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() == right.keys()
    assert all(np.array_equal(left[name], right[name]) for name in left)


def test_shards_are_read_as_one(tiny: Path) -> None:
    whole = weights(tiny)
    shard(tiny)
    assert_same(weights(tiny), whole)


def test_shards_in_bfloat16_stay_so(tiny: Path) -> None:
    exact = weights(tiny)
    halves = {name: torch.from_numpy(values).to(torch.bfloat16) for name, values in exact.items()}
    (tiny / "model.safetensors").unlink()
    shard_of = {name: f"model-{at % SHARDS}.safetensors" for at, name in enumerate(halves)}
    for file in set(shard_of.values()):
        torch_files.save_file({name: halves[name] for name in halves if shard_of[name] == file}, tiny / file)
    edit(tiny / "model.safetensors.index.json", weight_map=shard_of)
    model = PreparedModel.open(prepare(tiny, tiny.parent / "cache"))
    stored, floats = model.open_tensors(), model.open_weights()
    assert {tensor.form for tensor in stored.values()} == {Form.BFLOAT16}
    assert (model.directory / "weights.safetensors").stat().st_size < sum(
        values.nbytes for values in exact.values()
    ) * 0.6
    assert_same(floats, {name: values.to(torch.float32).numpy() for name, values in halves.items()})


def test_a_missing_shard_is_named(tiny: Path) -> None:
    shard(tiny)
    (tiny / "model-1.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-1\.safetensors is missing"):
        read_hf(tiny)


def test_a_truncated_shard_is_named(tiny: Path) -> None:
    shard(tiny)
    path = tiny / "model-2.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ModelError, match=r"model-2\.safetensors is truncated"):
        read_hf(tiny)


def test_a_stray_file_and_a_second_copy_of_a_tensor_change_nothing(tiny: Path) -> None:
    whole = weights(tiny)
    shard_of = shard(tiny)
    wrong = {name: np.zeros_like(values) for name, values in whole.items()}
    save_file(wrong, tiny / "zz-stray.safetensors")
    name = next(name for name, file in shard_of.items() if file == "model-0.safetensors")
    save_file(load_file(tiny / "model-1.safetensors") | {name: wrong[name]}, tiny / "model-1.safetensors")
    assert_same(weights(tiny), whole)


def test_a_tensor_that_its_shard_lacks_is_named(tiny: Path) -> None:
    shard_of = shard(tiny)
    edit(tiny / "model.safetensors.index.json", weight_map=shard_of | {"model.norm.bias": "model-0.safetensors"})
    with pytest.raises(ModelError, match=r"model-0\.safetensors lacks model\.norm\.bias"):
        read_hf(tiny)


def test_an_index_cannot_name_a_file_elsewhere(tiny: Path) -> None:
    shard(tiny)
    edit(tiny / "model.safetensors.index.json", weight_map={"a": "../model-0.safetensors"})
    with pytest.raises(ModelError, match="outside"):
        read_hf(tiny)


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        read_hf(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_every_missing_file_is_named(tiny: Path, name: str) -> None:
    (tiny / name).unlink()
    with pytest.raises(ModelError, match=f"{name} is missing"):
        read_hf(tiny)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_file_is_named(tiny: Path, name: str) -> None:
    (tiny / name).write_text('{"cut of')
    with pytest.raises(ModelError, match=name):
        read_hf(tiny)


def test_untied_embeddings_need_a_head(tiny: Path) -> None:
    edit(tiny / "config.json", tie_word_embeddings=False)
    with pytest.raises(ModelError, match=r"missing.*lm_head\.weight"):
        weights(tiny)


def test_an_equal_head_beside_tied_embeddings_changes_nothing(tiny: Path) -> None:
    whole = weights(tiny)
    save_file(whole | {"lm_head.weight": whole["model.embed_tokens.weight"]}, tiny / "model.safetensors")
    assert_same(weights(tiny), whole)


@pytest.mark.parametrize("architecture", CLASSES)
def test_every_architecture_is_complete_with_and_without_tied_embeddings(tmp_path: Path, architecture: str) -> None:
    tied = weights(write_tiny_hf_model(tmp_path / "tied", architecture=architecture))
    untied = weights(write_tiny_hf_model(tmp_path / "untied", architecture=architecture, tied=False))
    assert untied.keys() - tied.keys() == {"lm_head.weight"}


def test_stop_ids_are_the_union_of_all_sources(tiny: Path) -> None:
    edit(tiny / "config.json", eos_token_id=10)
    edit(tiny / "generation_config.json", eos_token_id=[11, 12])
    edit(tiny / "tokenizer_config.json", eos_token={"content": "Ġthe", "special": True})
    source = read_hf(tiny)
    the = json.loads(source.tokenizer_json)["model"]["vocab"]["Ġthe"]
    assert source.vocabulary.stop_ids == {10, 11, 12, the, 0, 2}


def test_end_of_turn_tokens_are_found_though_no_file_declares_them(tiny: Path) -> None:
    edit(tiny / "config.json", eos_token_id=None)
    edit(tiny / "tokenizer_config.json", eos_token=None)
    assert read_hf(tiny).vocabulary.stop_ids == {0, 2}


def test_a_malformed_end_token_is_named(tiny: Path) -> None:
    edit(tiny / "generation_config.json", eos_token_id=["</s>"])
    with pytest.raises(ModelError, match="eos_token_id"):
        read_hf(tiny)


def test_whether_a_prompt_begins_with_bos_is_declared_or_seen_in_the_tokenizer(tiny: Path) -> None:
    assert not read_hf(tiny).vocabulary.add_bos
    edit(tiny / "tokenizer_config.json", add_bos_token=True)
    assert read_hf(tiny).vocabulary.add_bos
    edit(tiny / "tokenizer_config.json", add_bos_token=None)
    step = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
    special = {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}}
    text = [step, {"Sequence": {"id": "A", "type_id": 0}}]
    processor = {"type": "TemplateProcessing", "single": text, "pair": text, "special_tokens": special}
    edit(tiny / "tokenizer.json", post_processor=processor)
    assert read_hf(tiny).vocabulary.add_bos


def test_the_template_file_wins_and_the_default_of_several_is_taken(tiny: Path) -> None:
    edit(
        tiny / "tokenizer_config.json",
        chat_template=[{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}],
    )
    assert read_hf(tiny).chat_template == "d"
    (tiny / "chat_template.jinja").write_text("file")
    assert read_hf(tiny).chat_template == "file"


def test_a_tokenizer_larger_than_the_table_is_refused(tiny: Path) -> None:
    edit(tiny / "config.json", vocab_size=100)
    with pytest.raises(ModelError, match="more tokens than vocab_size"):
        read_hf(tiny)
