"""The frequencies of rotary position embeddings, and the ways of stretching them.

Sources: Su et al. 2021 (arXiv:2104.09864); linear, Chen et al. 2023 (arXiv:2306.15595); yarn, Peng et al. 2023
(arXiv:2309.00071) sections 3.2 to 3.4; llama3, the reference code of Llama 3.1. Constants are those of transformers,
and so is the float32 arithmetic, since the rounding of a frequency grows with the position.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from services.core.model_config import ModelConfig, RopeScaling
from services.modelfiles.errors import ModelError

Floats = npt.NDArray[np.float32]


def inverse_frequencies(config: ModelConfig) -> Floats:
    """Radians per position of each pair, `[head_dim / 2]`. Raises `ModelError` for an unknown kind of scaling."""
    stretch = _STRETCHES.get(config.rope_scaling.kind)
    if stretch is None:
        raise ModelError("rope scaling: the engine does not know this kind")
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    # The power is rounded once, as transformers' is; numpy's own in float32 is often off by a unit.
    waves = (config.rope_theta ** exponents.astype(np.float64)).astype(np.float32)
    return stretch(np.float32(1) / waves, config)


def _unstretched(frequencies: Floats, config: ModelConfig) -> Floats:
    return frequencies


def _linear(frequencies: Floats, config: ModelConfig) -> Floats:
    return frequencies / np.float32(config.rope_scaling.factor)


def _llama3(frequencies: Floats, config: ModelConfig) -> Floats:
    """Short waves stay, long ones are stretched by the factor, those between are blended by their number of turns."""
    scaling = config.rope_scaling
    turns = scaling.original_context * frequencies / (2 * math.pi)
    kept: Floats = np.clip(
        (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0, 1
    )
    return _blended(kept, frequencies, scaling.factor)


def _yarn(frequencies: Floats, config: ModelConfig) -> Floats:
    """Pairs that turn often within the trained length stay, those that turn rarely are stretched, a ramp between."""
    low, high = _yarn_ramp(config.rope_scaling, config)
    pairs = np.arange(config.head_dim // 2, dtype=np.float32)
    kept: Floats = 1 - np.clip((pairs - low) / (high - low), 0, 1)
    return _blended(kept, frequencies, config.rope_scaling.factor)


def _blended(kept: Floats, frequencies: Floats, factor: float) -> Floats:
    """`kept` is the share of each frequency that is not stretched."""
    return kept * frequencies + (1 - kept) * frequencies / np.float32(factor)


def _yarn_ramp(scaling: RopeScaling, config: ModelConfig) -> tuple[float, float]:
    """The pairs between which the ramp runs: those making `beta_fast` and `beta_slow` turns in the trained length."""

    def pair_of(turns: float) -> float:
        wave = scaling.original_context / (turns * 2 * math.pi)
        return config.head_dim * math.log(wave) / (2 * math.log(config.rope_theta))

    low = max(math.floor(pair_of(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_of(scaling.beta_slow)), config.head_dim - 1)
    return low, high if high != low else high + 0.001


_STRETCHES: dict[str, Callable[[Floats, ModelConfig], Floats]] = {
    "default": _unstretched,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
