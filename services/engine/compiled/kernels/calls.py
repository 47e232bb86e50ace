"""Calls of kernels through their addresses (see `jit.native`)."""

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic


@intrinsic
def call(context, address, arguments):
    """Compiled code's call of a `native` kernel: its address, and its numbers as a tuple."""
    count = len(arguments)

    def emit(context, builder, signature, values):
        word = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [word] * (count + 1))
        numbers = [builder.extract_value(values[1], at) for at in range(count)]
        # The constant choice is a parameter too, that nobody reads.
        builder.call(builder.inttoptr(values[0], ir.PointerType(kind)), [ir.Constant(word, 0), *numbers])
        return context.get_dummy_value()

    return types.void(types.int64, types.UniTuple(types.int64, count)), emit
