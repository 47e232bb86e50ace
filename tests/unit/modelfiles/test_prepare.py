import json
import signal
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from services.modelfiles import manifest
from services.modelfiles.errors import ModelError
from services.modelfiles.gguf_source import read_gguf
from services.modelfiles.prepare import prepare
from services.modelfiles.prepared import PreparedModel
from services.modelfiles.stored_tensor import Form
from tests.support.tiny_gguf import write_tiny_gguf
from tests.support.tiny_model import write_tiny_hf_model

_PREPARE_AND_COUNT = """
import sys
from pathlib import Path
from services.modelfiles.gguf_source import read_gguf
from services.modelfiles.prepare import prepare
print(prepare(Path(sys.argv[1]), Path(sys.argv[2]), lambda line: print("step", line)))
"""

_DIE_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from services.modelfiles.gguf_source import read_gguf
from services.modelfiles.prepare import prepare
def progress(line):
    if line.startswith("writing"):
        os.kill(os.getpid(), signal.SIGKILL)
prepare(Path(sys.argv[1]), Path(sys.argv[2]), progress)
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "prepared").iterdir() if path.suffix != ".lock")


def test_a_prepared_model_is_all_there(tiny: Path, cache: Path) -> None:
    model = PreparedModel.open(prepare(tiny, cache))
    source = load_file(tiny / "model.safetensors")
    found = model.open_weights()
    assert found.keys() == source.keys()
    assert all(np.array_equal(found[name], source[name]) for name in source)
    assert (model.name, model.bos_id, model.add_bos, model.stop_ids) == ("tiny", 1, False, {0, 2})
    assert model.config.vocab == 320
    tokenizer, template = model.tokenizer(), model.chat_template()
    assert tokenizer.decode(tokenizer.encode("the end")) == "the end"
    assert template is not None and template.render([{"role": "user", "content": "a"}]).endswith("assistant\n")
    model.verify()


def test_a_second_time_takes_what_is_there(tiny: Path, cache: Path) -> None:
    lines: list[str] = []
    first = prepare(tiny, cache, lines.append)
    assert len(lines) == 2
    assert prepare(tiny, cache, lines.append) == first
    assert len(lines) == 2


def test_the_digest_is_that_of_the_content_and_not_of_the_place(tmp_path: Path, cache: Path) -> None:
    here, there = (prepare(write_tiny_hf_model(tmp_path / name), cache) for name in ("here", "there"))
    assert here != there
    assert PreparedModel.open(here).digest == PreparedModel.open(there).digest
    other = prepare(write_tiny_hf_model(tmp_path / "other", seed=1), cache)
    assert PreparedModel.open(other).digest != PreparedModel.open(here).digest


def test_other_weights_in_the_same_place_are_prepared_anew(tiny: Path, cache: Path) -> None:
    first = prepare(tiny, cache)
    write_tiny_hf_model(tiny, seed=1)
    second = prepare(tiny, cache)
    assert second != first
    assert PreparedModel.open(second).digest != PreparedModel.open(first).digest


def test_a_gguf_file_has_the_weights_of_its_origin(tiny: Path, tmp_path: Path, cache: Path) -> None:
    ours = PreparedModel.open(prepare(write_tiny_gguf(tiny, tmp_path / "Tiny Model.gguf"), cache))
    theirs = PreparedModel.open(prepare(tiny, cache))
    assert ours.name == "Tiny-Model"
    assert ours.manifest.files[manifest.WEIGHTS] == theirs.manifest.files[manifest.WEIGHTS]


def test_a_quantized_file_is_kept_in_its_own_blocks(tiny: Path, tmp_path: Path, cache: Path) -> None:
    path = write_tiny_gguf(tiny, tmp_path / "a.gguf", quantization=gguf.GGMLQuantizationType.Q4_1)
    model = PreparedModel.open(prepare(path, cache))
    stored, floats, source = model.open_tensors(), model.open_weights(), read_gguf(path).tensors
    assert stored.keys() == floats.keys() == source.keys()
    for name, tensor in stored.items():
        assert tensor.form is (Form.Q4_1 if len(tensor.shape) == 2 else Form.FLOAT32)
        assert tensor.data.tobytes() == source[name].read().data.tobytes()
        assert floats[name].dtype == np.float32 and floats[name].shape == tensor.shape
    assert model.manifest.files[manifest.WEIGHTS].size < path.stat().st_size
    model.verify()


def test_a_directory_of_an_earlier_format_is_left_and_made_anew(tiny: Path, cache: Path) -> None:
    target = prepare(tiny, cache)
    path = target / manifest.MANIFEST
    path.write_text(path.read_text().replace(f'"format": {manifest.FORMAT}', f'"format": {manifest.FORMAT - 1}'))
    with pytest.raises(ModelError, match="another format"):
        PreparedModel.open(target)
    PreparedModel.open(prepare(tiny, cache)).verify()


def test_two_processes_at_once_prepare_once(tiny: Path, cache: Path) -> None:
    command = [sys.executable, "-c", _PREPARE_AND_COUNT, str(tiny), str(cache)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate()[0].splitlines() for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert sorted(len(lines) - 1 for lines in outputs) == [0, 0, 2]
    assert len({lines[-1] for lines in outputs}) == 1


def test_a_process_killed_half_way_leaves_nothing_that_is_opened(tiny: Path, cache: Path) -> None:
    command = [sys.executable, "-c", _DIE_WHILE_WRITING, str(tiny), str(cache)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (partial,) = left_in(cache)
    with pytest.raises(ModelError, match="not a prepared model"):
        PreparedModel.open(cache / "prepared" / partial)
    target = prepare(tiny, cache)
    assert left_in(cache) == [target.name]


def test_a_model_that_is_refused_leaves_nothing(tiny: Path, cache: Path) -> None:
    weights = load_file(tiny / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tiny / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.norm\.weight"):
        prepare(tiny, cache)
    assert left_in(cache) == []


@pytest.mark.parametrize("name", [manifest.WEIGHTS, manifest.TOKENIZER, manifest.CHAT_TEMPLATE])
def test_an_incomplete_file_is_not_opened_but_made_again(tiny: Path, cache: Path, name: str) -> None:
    target = prepare(tiny, cache)
    (target / name).write_bytes((target / name).read_bytes()[:-1])
    with pytest.raises(ModelError, match=name):
        PreparedModel.open(target)
    assert prepare(tiny, cache) == target
    PreparedModel.open(target).verify()


def test_a_flipped_bit_is_found_by_verifying(tiny: Path, cache: Path) -> None:
    target = prepare(tiny, cache)
    content = bytearray((target / manifest.WEIGHTS).read_bytes())
    content[-1] ^= 1
    (target / manifest.WEIGHTS).write_bytes(content)
    with pytest.raises(ModelError, match=manifest.WEIGHTS):
        PreparedModel.open(target).verify()


def test_a_manifest_that_contradicts_itself_is_refused(tiny: Path, cache: Path) -> None:
    path = prepare(tiny, cache) / manifest.MANIFEST
    value = json.loads(path.read_text())
    value["config"]["rope_theta"] = 1.0
    path.write_text(json.dumps(value))
    with pytest.raises(ModelError, match="digest"):
        PreparedModel.open(path.parent)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 99}'])
def test_a_damaged_or_foreign_manifest_is_refused(tiny: Path, cache: Path, text: str) -> None:
    path = prepare(tiny, cache) / manifest.MANIFEST
    path.write_text(text)
    with pytest.raises(ModelError):
        PreparedModel.open(path.parent)


def test_stop_ids_past_the_table_are_dropped(tiny: Path, cache: Path) -> None:
    config = json.loads((tiny / "config.json").read_text())
    (tiny / "config.json").write_text(json.dumps(config | {"eos_token_id": [5, 320, -1]}))
    assert PreparedModel.open(prepare(tiny, cache)).stop_ids == {0, 2, 5}


def test_a_model_without_a_template_is_no_chat_model(tiny: Path, cache: Path) -> None:
    (tiny / "tokenizer_config.json").unlink()
    assert PreparedModel.open(prepare(tiny, cache)).chat_template() is None


@pytest.mark.parametrize("name", ["nowhere", "nowhere.gguf", "model.bin"])
def test_what_is_neither_a_gguf_file_nor_a_directory_is_refused(tmp_path: Path, cache: Path, name: str) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(ModelError, match="neither"):
        prepare(tmp_path / name, cache)
