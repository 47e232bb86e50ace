"""Every architecture from its files to its logits, against transformers on the same random weights."""

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.numpy import save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from services.core.plan import Chunk
from services.engine.batch import Batch
from services.engine.rope import Rotary
from services.engine.torch_load import TorchEngine, TorchSettings, load_torch
from services.modelfiles.gguf_source import read_gguf
from services.modelfiles.prepare import prepare
from services.modelfiles.prepared import PreparedModel
from tests.support.tiny_gguf import write_tiny_gguf
from tests.support.tiny_model import CLASSES, write_tiny_hf_model
from tests.unit.engine.tiny_decoder import chunk

SETTINGS = TorchSettings(num_blocks=8)
TOKENS = [3 + (37 * at * at + 11 * at) % 300 for at in range(70)]
TRAINED = 24
"""Positions before stretching, so that most of the prompt lies beyond."""

MODELS: dict[str, dict[str, Any]] = {
    **{architecture: {"architecture": architecture} for architecture in CLASSES},
    **{f"{architecture}, untied": {"architecture": architecture, "tied": False} for architecture in CLASSES},
    "llama, biased": {"attention_bias": True},
    "llama, wide heads": {"head_dim": 24},
    "mistral, with a window": {"architecture": "mistral", "sliding_window": 70},
    "mistral, wide heads": {"architecture": "mistral", "head_dim": 24, "tied": False},
    "qwen2, with a window in the last layer": {
        "architecture": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 70,
        "max_window_layers": 1,
    },
    "qwen3, biased": {"architecture": "qwen3", "attention_bias": True},
    "qwen3, wide heads": {"architecture": "qwen3", "head_dim": 40},
}

# Every kind that is accepted, with the pairs of a head on both sides of its ramp and on it.
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": TRAINED,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED},
    "yarn, its own ramp and magnitude": {
        "rope_type": "yarn",
        "factor": 8.0,
        "beta_fast": 4.0,
        "beta_slow": 0.5,
        "mscale": 0.7,
        "mscale_all_dim": 1.2,
        "original_max_position_embeddings": TRAINED,
    },
}
STORED_IN_GGUF = ("default", "linear", "yarn")
"""The divisors of Llama 3 are recognized for the published trained length only, which is tested by itself."""


def our_logits(source: Path, cache: Path) -> torch.Tensor:
    """`[tokens, vocab]`, in two steps over shuffled blocks."""
    engine = load_torch(PreparedModel.open(prepare(source, cache)), SETTINGS)
    blocks = [5, 1, 7, 0, 2]
    with torch.inference_mode():
        parts = [chunk(TOKENS[:33], 0, blocks), chunk(TOKENS[33:], 33, blocks)]
        return torch.cat([step_logits(engine, part) for part in parts])


def step_logits(engine: TorchEngine, part: Chunk) -> torch.Tensor:
    batch = Batch.of([part], engine.format.block_size, engine.cache.device)
    return engine.decoder.logits(engine.decoder.forward(batch, engine.cache))


def their_logits(directory: Path) -> torch.Tensor:
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        logits: torch.Tensor = reference(torch.tensor([TOKENS])).logits[0]
    return logits


def assert_same(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_both_kinds_of_file_compute_what_transformers_computes(tmp_path: Path, model: dict[str, Any]) -> None:
    directory = write_tiny_hf_model(tmp_path / "hf", **model)
    expected = their_logits(directory)
    assert_same(our_logits(directory, tmp_path / "cache"), expected)
    assert_same(our_logits(write_tiny_gguf(directory, tmp_path / "a.gguf"), tmp_path / "cache"), expected)


@pytest.mark.parametrize("kind", SCALINGS)
def test_positions_beyond_the_trained_length_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    directory = write_tiny_hf_model(tmp_path / "hf", rope_scaling=SCALINGS[kind], head_dim=32, rope_theta=500.0)
    expected = their_logits(directory)
    assert_same(our_logits(directory, tmp_path / "cache"), expected)
    if kind in STORED_IN_GGUF:
        assert_same(our_logits(write_tiny_gguf(directory, tmp_path / "a.gguf"), tmp_path / "cache"), expected)


def test_a_llama_3_file_rotates_as_transformers_far_beyond_the_trained_length(tmp_path: Path) -> None:
    scaling = SCALINGS["llama3"] | {"original_max_position_embeddings": 8192}
    shape: dict[str, Any] = {"head_dim": 64, "rope_theta": 500000.0, "rope_scaling": scaling}
    directory = write_tiny_hf_model(tmp_path / "hf", **shape)
    config = read_gguf(write_tiny_gguf(directory, tmp_path / "a.gguf")).config
    positions = torch.tensor([0, 1, 8191, 8192, 30_000, 131_071])
    ours = Rotary(config, torch.device("cpu")).angles(positions)
    reference = LlamaRotaryEmbedding(AutoConfig.from_pretrained(directory))
    theirs = reference(torch.zeros(1), positions[None])
    for our_part, their_part in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our_part[:, 0], their_part[0, :, : config.head_dim // 2], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [kind for kind in SCALINGS if kind != "default"])
def test_each_scaling_makes_a_difference_beyond_the_trained_length(tmp_path: Path, kind: str) -> None:
    scaled = write_tiny_hf_model(tmp_path / "scaled", rope_scaling=SCALINGS[kind], head_dim=32, rope_theta=500.0)
    plain = write_tiny_hf_model(tmp_path / "plain", head_dim=32, rope_theta=500.0)
    difference = our_logits(scaled, tmp_path / "cache") - our_logits(plain, tmp_path / "cache")
    assert difference[TRAINED:].abs().amax(dim=1).min() > 0.01


def test_a_quantized_file_computes_what_transformers_computes_from_its_weights(tmp_path: Path) -> None:
    """The numbers that a file of 4 bits stands for, written out, give the same model."""
    directory = write_tiny_hf_model(tmp_path / "hf", architecture="qwen3")
    path = write_tiny_gguf(directory, tmp_path / "a.gguf", quantization=gguf.GGMLQuantizationType.Q4_1)
    weights = PreparedModel.open(prepare(path, tmp_path / "cache")).open_weights()
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    assert_same(our_logits(path, tmp_path / "cache"), their_logits(directory))
