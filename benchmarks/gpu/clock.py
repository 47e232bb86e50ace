"""Times on a CUDA device, and its limits measured with them."""

from collections.abc import Callable
from statistics import median

import torch

from gpu.work import Limits

_CACHE_BYTES = 256 << 20
_COPY_BYTES = 1 << 30
_PRODUCT = 8192
_WARM_UP = 3


def seconds(call: Callable[[], object], repetitions: int) -> float:
    """Median over the repetitions, each with a cold cache.

    Overwriting the cache also keeps the device busy while the host prepares the launch, which is not what is timed.
    """
    scratch = torch.empty(_CACHE_BYTES, dtype=torch.uint8, device="cuda")
    for _ in range(_WARM_UP):
        call()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repetitions)]
    for began, ended in pairs:
        scratch.zero_()
        began.record()
        call()
        ended.record()
    torch.cuda.synchronize()
    return median(began.elapsed_time(ended) for began, ended in pairs) / 1e3


def measured_limits(repetitions: int) -> Limits:
    """A copy of 1 GiB, and a float16 product of 8 192 cubed."""
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    square = torch.randn((_PRODUCT, _PRODUCT), device="cuda").half()
    return Limits(
        bandwidth=2 * _COPY_BYTES / seconds(lambda: target.copy_(source), repetitions),
        flops=2 * _PRODUCT**3 / seconds(lambda: square @ square, repetitions),
    )
