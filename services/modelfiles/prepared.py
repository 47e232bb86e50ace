"""A prepared model: the only form in which gateway and workers open one.

    manifest.json         name, digest, configuration, vocabulary; size and hash of the files below
    weights.safetensors   every tensor under Hugging Face's name, in the form its source has it in
    tokenizer.json
    chat_template.jinja   if the model has one

The directory appears under its name complete or not at all (see `prepare.py`), and nobody changes it afterwards.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from services.core.model_config import ModelConfig
from services.modelfiles.chat_template import ChatTemplate
from services.modelfiles.ggml_blocks import Floats
from services.modelfiles.manifest import (
    CHAT_TEMPLATE,
    TOKENIZER,
    WEIGHTS,
    Manifest,
    check_contents,
    check_sizes,
    read_manifest,
)
from services.modelfiles.safetensors_file import open_safetensors
from services.modelfiles.stored_tensor import StoredTensor
from services.modelfiles.tensors import checked_tensors
from services.modelfiles.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """An opened prepared directory; what is large is read by the methods."""

    directory: Path
    manifest: Manifest

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Raises `ModelError` if the directory is not a prepared model, or a file in it is missing or incomplete."""
        manifest = read_manifest(directory)
        check_sizes(directory, manifest)
        return cls(directory, manifest)

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def digest(self) -> str:
        """Stands for configuration, weights and tokenizer: 64 hex digits, the fingerprint of KV blocks."""
        return self.manifest.digest

    @property
    def config(self) -> ModelConfig:
        return self.manifest.config

    @property
    def stop_ids(self) -> frozenset[int]:
        """An answer ends with any of these."""
        return self.manifest.vocabulary.stop_ids

    @property
    def bos_id(self) -> int | None:
        return self.manifest.vocabulary.bos_id

    @property
    def add_bos(self) -> bool:
        """Whether a plain prompt begins with `bos_id`; a chat template writes its own."""
        return self.manifest.vocabulary.add_bos

    def open_weights(self) -> dict[str, Floats]:
        """As `open_tensors`, everything as float32: what is stored as float32 is a view, all else is computed."""
        return {name: tensor.floats() for name, tensor in self.open_tensors().items()}

    def open_tensors(self) -> dict[str, StoredTensor]:
        """Every tensor of the model and no other, by Hugging Face's names, as views of the mapped file.

        The views of floats are copy-on-write: torch may wrap them without a copy. Processes share the pages. Raises
        `ModelError` naming a tensor that is missing, left over or of another shape.
        """
        stored = open_safetensors(self.directory / WEIGHTS)
        return {name: tensor.read() for name, tensor in checked_tensors(self.config, stored).items()}

    def tokenizer(self) -> Tokenizer:
        """Takes a moment (0.1 to 1 s): keep it."""
        return Tokenizer((self.directory / TOKENIZER).read_text(encoding="utf-8"))

    def chat_template(self) -> ChatTemplate | None:
        """None if the model has none: it is not a chat model."""
        if CHAT_TEMPLATE not in self.manifest.files:
            return None
        source = (self.directory / CHAT_TEMPLATE).read_text(encoding="utf-8")
        return ChatTemplate(source, self.manifest.vocabulary)

    def verify(self) -> None:
        """Read every byte and compare with the manifest. Raises `ModelError` naming the damaged file."""
        check_contents(self.directory, self.manifest)
