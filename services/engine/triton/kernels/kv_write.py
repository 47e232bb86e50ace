"""The rows' key and value into their blocks, quantized where the cache is int8."""

import triton
import triton.language as tl


@triton.jit
def _quantized(vector):
    """int8 values and scale of one vector; see `kv_layer.quantized`."""
    scale = tl.max(tl.abs(vector), axis=0) / 127.0
    # A maximum passes over what is not a number; a sum does not, and 0 times anything finite adds nothing.
    scale = tl.where(scale < 1e-9, 1e-9, scale) + tl.sum(vector * 0.0, axis=0)
    # Rounds halves to even, as torch does: beyond 2^23 a float32 has no fraction.
    rounded = (vector / scale + 12582912.0) - 12582912.0
    return tl.where(scale == scale, rounded, 0.0).to(tl.int8), scale


@triton.jit
def kv_write(
    key, value, k, v, k_scale, v_scale, blocks, offsets, key_stride, value_stride, page_stride, scale_stride,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """One row, one head. Grid: (rows, kv_heads)."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dims = tl.arange(0, DIM)
    real = dims < HEAD_DIM
    block, offset = tl.load(blocks + row).to(tl.int64), tl.load(offsets + row)
    keys = tl.load(key + row * key_stride + head * HEAD_DIM + dims, mask=real, other=0).to(tl.float32)
    values = tl.load(value + row * value_stride + head * HEAD_DIM + dims, mask=real, other=0).to(tl.float32)
    if SCALED:
        keys, scale_of_key = _quantized(keys)
        values, scale_of_value = _quantized(values)
        at_scale = block * scale_stride + head * BLOCK_SIZE + offset
        tl.store(k_scale + at_scale, scale_of_key)
        tl.store(v_scale + at_scale, scale_of_value)
    first = block * page_stride + head * HEAD_DIM * BLOCK_SIZE
    tl.store(k + first + dims * BLOCK_SIZE + offset, keys.to(k.dtype.element_ty), mask=real)
    tl.store(v + first + offset * HEAD_DIM + dims, values.to(v.dtype.element_ty), mask=real)
