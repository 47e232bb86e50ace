"""What `gpu_kernels.py` measures with: the work in a kernel, the device's limits, the clock and the table."""
