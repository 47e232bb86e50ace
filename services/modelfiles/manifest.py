"""manifest.json of a prepared directory: what the model is, and the size and hash of every other file in it.

The digest stands for everything that decides the bits of the KV cache and of token ids: configuration, weights and
tokenizer. Stop ids and the chat template are not in it: they may be corrected without throwing cached blocks away.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from services.core.model_config import ModelConfig, RopeScaling
from services.modelfiles.errors import ModelError
from services.modelfiles.vocabulary import Vocabulary

MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
TOKENIZER = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"

FORMAT = 2
"""Counts the forms of a prepared directory; one of another form is prepared again."""

_HASHED_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file beside the manifest."""

    size: int
    """Bytes."""
    blake2b: str
    """Of its content, in hex."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything about a prepared model but its bulk."""

    name: str
    config: ModelConfig
    vocabulary: Vocabulary
    files: Mapping[str, StoredFile]

    @property
    def digest(self) -> str:
        """64 hex digits; parts are delimited by their lengths, so that no two sets of parts run together."""
        digest = hashlib.blake2b(digest_size=32)
        config = json.dumps(asdict(self.config), sort_keys=True)
        for part in (str(FORMAT), config, self.files[WEIGHTS].blake2b, self.files[TOKENIZER].blake2b):
            digest.update(len(part).to_bytes(8, "little") + part.encode())
        return digest.hexdigest()


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write manifest.json, the last file of a prepared directory."""
    value = asdict(manifest) | {"format": FORMAT, "digest": manifest.digest}
    value["vocabulary"]["stop_ids"] = sorted(manifest.vocabulary.stop_ids)
    (directory / MANIFEST).write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read_manifest(directory: Path) -> Manifest:
    """Raises `ModelError` if there is none, or one of another format or that contradicts itself."""
    try:
        value = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        if value["format"] != FORMAT:
            raise ModelError("the prepared model is of another format; prepare it again")
        manifest = _from_json(value)
        if manifest.digest != value["digest"]:
            raise ModelError(f"{MANIFEST} does not match its own digest")
    except FileNotFoundError as error:
        raise ModelError("not a prepared model: there is no manifest.json") from error
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError(f"{MANIFEST} is damaged") from error
    return manifest


def check_sizes(directory: Path, manifest: Manifest) -> None:
    """Raises `ModelError` naming a file that is missing or not of its size; takes microseconds."""
    for name, stored in manifest.files.items():
        path = directory / name
        if not path.is_file() or path.stat().st_size != stored.size:
            raise ModelError(f"{name} of the prepared model is missing or incomplete")


def check_contents(directory: Path, manifest: Manifest) -> None:
    """Raises `ModelError` naming a file whose content is not what was written; reads every byte."""
    for name, stored in manifest.files.items():
        if stored_file(directory / name) != stored:
            raise ModelError(f"{name} of the prepared model is damaged")


def stored_file(path: Path) -> StoredFile:
    """Size and hash of a file."""
    digest = hashlib.blake2b(digest_size=32)
    with path.open("rb") as file:
        while part := file.read(_HASHED_AT_ONCE):
            digest.update(part)
    return StoredFile(path.stat().st_size, digest.hexdigest())


def _from_json(value: Mapping[str, Any]) -> Manifest:
    config, vocabulary = value["config"], value["vocabulary"]
    return Manifest(
        name=value["name"],
        config=ModelConfig(**config | {"rope_scaling": RopeScaling(**config["rope_scaling"])}),
        vocabulary=Vocabulary(**vocabulary | {"stop_ids": frozenset(vocabulary["stop_ids"])}),
        files={name: StoredFile(**stored) for name, stored in value["files"].items()},
    )
