"""Tokenizers of the real model, ours and another's, and a small directory to break."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer, TokenizersBackend

from services.modelfiles.prepared import PreparedModel
from services.modelfiles.tokenizer import Tokenizer
from tests.support.tiny_model import write_tiny_hf_model


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: PreparedModel) -> Tokenizer:
    return smollm2.tokenizer()


@pytest.fixture(scope="session")
def transformers_tokenizer(smollm2_gguf: Path) -> TokenizersBackend:
    """The same file read by others."""
    return AutoTokenizer.from_pretrained(smollm2_gguf.parent, gguf_file=smollm2_gguf.name)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A small Hugging Face directory to break."""
    return write_tiny_hf_model(tmp_path / "tiny")
