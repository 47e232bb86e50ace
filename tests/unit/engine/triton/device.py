"""Where kernels are tested: a GPU where TRITON_INTERPRET=0 asks for it, else Triton's interpreter on the CPU."""

import torch
from triton import knobs

DEVICE = torch.device("cpu" if knobs.runtime.interpret else "cuda")
