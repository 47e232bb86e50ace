"""What the processor that is compiled for can do; Numba's settings `NUMBA_CPU_NAME` and `NUMBA_CPU_FEATURES` count."""

from llvmlite import binding
from numba.core import config


def _has(feature: str) -> bool:
    if config.CPU_FEATURES is not None:
        return f"+{feature}" in config.CPU_FEATURES.split(",")
    return config.CPU_NAME in (None, "host") and binding.get_host_cpu_features().get(feature, False)


HAS_AVX2 = _has("avx2")
HAS_AVX512 = _has("avx512bw")
HAS_VNNI = HAS_AVX512 and _has("avx512vnni")
HAS_WIDE_REGISTERS = HAS_AVX512
"""Thirty-two registers of sixteen float32; otherwise sixteen of eight are assumed."""
