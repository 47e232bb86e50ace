"""`diptych model` and the `--model` option: from a name to a prepared directory."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from services.cli.errors import CommandError
from services.modelfiles.errors import ModelError
from services.modelfiles.manifest import MANIFEST
from services.modelfiles.prepare import prepare
from services.modelfiles.prepared import PreparedModel
from services.modelfiles.pull import PACKAGED, pull

HUB_PREFIX = "hf:"
PULLED = tuple(PACKAGED)
"""Models with a name of their own."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A prepared model in the cache."""

    name: str
    digest: str
    context: int
    size: int
    """Bytes."""
    directory: Path


def prepared_model(model: str, cache: Path, progress: Progress) -> Path:
    """The prepared directory of `smollm2`, `hf:<repo>`, a GGUF file, a Hugging Face directory or a prepared one.

    Pulls and prepares what is not in the cache yet. Raises CommandError or ModelError.
    """
    if model in PULLED or model.startswith(HUB_PREFIX):
        return prepare(pull(model, cache, progress), cache, progress)
    path = Path(model).expanduser()
    if not path.exists():
        raise CommandError(f"there is no model at {model}; give a path, or one of: {', '.join(PULLED)}, hf:<repo>")
    if (path / MANIFEST).is_file():
        return PreparedModel.open(path.resolve()).directory
    return prepare(path, cache, progress)


def listed(cache: Path) -> list[ListedModel]:
    """Every prepared model in the cache, by name; what is being written or damaged is passed over."""
    found = []
    for manifest in sorted(cache.glob(f"prepared/*/{MANIFEST}")):
        try:
            model = PreparedModel.open(manifest.parent)
        except ModelError:
            continue
        size = sum(file.size for file in model.manifest.files.values())
        found.append(ListedModel(model.name, model.digest, model.config.context, size, model.directory))
    return found
