"""What both kinds of model file are read into, before anything is written."""

from collections.abc import Mapping
from dataclasses import dataclass

from services.core.model_config import ModelConfig
from services.modelfiles.stored_tensor import LazyTensor
from services.modelfiles.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as its files describe it; the tensors are not yet checked against the configuration."""

    config: ModelConfig
    vocabulary: Vocabulary
    tokenizer_json: str
    chat_template: str | None
    tensors: Mapping[str, LazyTensor]
    """By Hugging Face's names."""
