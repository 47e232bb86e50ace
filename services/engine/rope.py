"""Rotary position embeddings and the ways of stretching them.

Owns frequencies and rotation. Pairs are the halves of a head (`rotate_half` in Hugging Face's Llama), not neighbours.
Sources: Su et al. 2021 (arXiv:2104.09864); linear, Chen et al. 2023 (arXiv:2306.15595); yarn, Peng et al. 2023
(arXiv:2309.00071) sections 3.2 to 3.4; llama3, the reference code of Llama 3.1. Constants are those of transformers,
and so is the float32 arithmetic, since the rounding of a frequency grows with the position.
"""

import math
from collections.abc import Callable

import torch

from services.core.model_config import ModelConfig, RopeScaling
from services.modelfiles.errors import ModelError


class Rotary:
    """Turns positions into rotations of `head_dim`-wide vectors."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(config).to(device)  # [head_dim / 2]
        self._attention_factor = config.rope_scaling.attention_factor

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine for positions `[rows]`, each `[rows, 1, head_dim / 2]`."""
        angles = positions[:, None, None].to(torch.float32) * self._frequencies
        return angles.cos() * self._attention_factor, angles.sin() * self._attention_factor


def rotate(vectors: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotate `[rows, heads, head_dim]` by the angles of their rows."""
    cos, sin = angles
    first, second = vectors.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def inverse_frequencies(config: ModelConfig) -> torch.Tensor:
    """Radians per position of each pair, `[head_dim / 2]`. Raises `ModelError` for an unknown kind of scaling."""
    stretch = _STRETCHES.get(config.rope_scaling.kind)
    if stretch is None:
        raise ModelError("rope scaling: the engine does not know this kind")
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    return stretch(1.0 / config.rope_theta**exponents, config)


def _unstretched(frequencies: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    return frequencies


def _linear(frequencies: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    return frequencies / config.rope_scaling.factor


def _llama3(frequencies: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """Short waves stay, long ones are stretched by the factor, those between are blended by their number of turns."""
    scaling = config.rope_scaling
    turns = scaling.original_context * frequencies / (2 * math.pi)
    kept = ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


def _yarn(frequencies: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """Pairs that turn often within the trained length stay, those that turn rarely are stretched, a ramp between."""
    low, high = _yarn_ramp(config.rope_scaling, config)
    pairs = torch.arange(config.head_dim // 2, dtype=torch.float32)
    kept = 1 - ((pairs - low) / (high - low)).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / config.rope_scaling.factor


def _yarn_ramp(scaling: RopeScaling, config: ModelConfig) -> tuple[float, float]:
    """The pairs between which the ramp runs: those making `beta_fast` and `beta_slow` turns in the trained length."""

    def pair_of(turns: float) -> float:
        wave = scaling.original_context / (turns * 2 * math.pi)
        return config.head_dim * math.log(wave) / (2 * math.log(config.rope_theta))

    low = max(math.floor(pair_of(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_of(scaling.beta_slow)), config.head_dim - 1)
    return low, high if high != low else high + 0.001


_STRETCHES: dict[str, Callable[[torch.Tensor, ModelConfig], torch.Tensor]] = {
    "default": _unstretched,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
