"""Code that is compiled: it runs without the interpreter, on numbers and addresses, and its types are Numba's.

`vector_ir` and `forms` emit vector code; `tiles`, `attention_tiles` and `row_tiles` are the inner loops;
`linear_kernels` and `attention` are kernels compiled by themselves; `linear`, `rows`, `team` and `step` put them
together.
"""
