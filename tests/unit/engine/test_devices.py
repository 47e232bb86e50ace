"""A machine without a GPU needs no Triton."""

import subprocess
import sys

import torch

from services.engine.devices import backend_for
from services.engine.torch_backend import TorchBackend
from services.engine.triton.backend import TritonBackend

WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import torch
import services.engine.torch_load
from services.engine.devices import backend_for
backend_for(torch.device("cpu"))
try:
    backend_for(torch.device("cuda"))
except ImportError:
    print("only a GPU asks for it")
"""


def test_plain_torch_computes_on_a_cpu() -> None:
    assert isinstance(backend_for(torch.device("cpu")), TorchBackend)


def test_kernels_compute_on_a_gpu() -> None:
    assert isinstance(backend_for(torch.device("cuda")), TritonBackend)


def test_the_engine_runs_where_triton_is_not_installed() -> None:
    ran = subprocess.run([sys.executable, "-c", WITHOUT_TRITON], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "only a GPU asks for it"
