"""The CPU engine: one compiled call per step for the whole model, on paged KV read in place.

`kernels` is the compiled code; `packing`, `packed_file` and `weights` lay weights out for it, `kv_memory` and `work`
hand it the cache and the rows of a step, `threads` runs it, and `runner` is what a worker sees.
"""
