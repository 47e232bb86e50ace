"""Rotation of queries and keys by their positions, in torch.

Pairs are the halves of a head (`rotate_half` in Hugging Face's Llama), not neighbours.
"""

import torch

from services.core.model_config import ModelConfig
from services.engine.rotary_frequencies import inverse_frequencies


class Rotary:
    """Turns positions into rotations of `head_dim`-wide vectors."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._frequencies = torch.from_numpy(inverse_frequencies(config)).to(device)  # [head_dim / 2]
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
