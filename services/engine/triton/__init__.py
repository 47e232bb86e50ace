"""The decoder's operations as Triton kernels, for CUDA.

Owns kernels (`kernels`, device code only) and how they are launched. Imported only where a GPU asks for it
(`services.engine.devices`). Under Triton's interpreter (TRITON_INTERPRET=1) the same kernels run on a CPU, slowly.
"""
