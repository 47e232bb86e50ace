"""Which backend a device takes, and when a step on it has ended.

Triton is imported only where a GPU asks for it: machines without one need not have it installed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import torch

from services.engine.backend import Backend
from services.engine.torch_backend import TorchBackend

_TRITON_BACKEND = "services.engine.triton.backend"


def backend_for(device: torch.device) -> Backend:
    """Triton kernels for CUDA, plain torch otherwise. Raises `ImportError` for CUDA where Triton is not installed."""
    if device.type != "cuda":
        return TorchBackend()
    backend: Backend = import_module(_TRITON_BACKEND).TritonBackend()
    return backend


@contextmanager
def step_on(device: torch.device) -> Iterator[None]:
    """Launches go to this device, and at the end all of them are done: a GPU runs behind the thread that feeds it."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        yield
        torch.cuda.synchronize()
