"""Rows times an int8 matrix that is dequantized on the way: half or a quarter of the bytes of a float one."""

import triton
import triton.language as tl


@triton.jit
def int8_linear(
    x, values, scales, bias, out, rows, outputs, inputs, x_stride,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BIASED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile `[ROWS, OUTPUTS]` of x × valuesᵀ × scales + bias; the sum over inputs runs in steps of INPUTS.

    Grid: (outputs / OUTPUTS, rows / ROWS). int8 is exact in every float type that x may have, so only the sum rounds.
    """
    n = tl.program_id(0).to(tl.int64) * OUTPUTS + tl.arange(0, OUTPUTS)
    m = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    steps = tl.arange(0, INPUTS)
    acc = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, inputs, INPUTS):
        at = start + steps
        left = tl.load(
            x + m[:, None] * x_stride + at[None, :], mask=(m < rows)[:, None] & (at < inputs)[None, :], other=0
        )
        right = tl.load(
            values + n[None, :] * inputs + at[:, None], mask=(at < inputs)[:, None] & (n < outputs)[None, :], other=0
        )
        acc = tl.dot(left, right.to(left.dtype), acc, input_precision=PRECISION)
    acc = acc * tl.load(scales + n, mask=n < outputs, other=0)[None, :]
    if BIASED:
        acc += tl.load(bias + n, mask=n < outputs, other=0).to(tl.float32)[None, :]
    mask = (m < rows)[:, None] & (n < outputs)[None, :]
    tl.store(out + m[:, None] * outputs + n[None, :], acc.to(out.dtype.element_ty), mask=mask)
