"""Compute threads that work on one step together: handing out work, and waiting until it is done.

A phase's work is handed out in small pieces by counters, and a phase is over when all pieces are done, not when all
threads have come: a thread that is held up (a busy machine, a larger piece) leaves more to the others, and holds them
up only while it has a piece in hand. Who computes a piece does not change its result.

A counter is an int64 with a cache line of its own.
"""

import platform

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from services.engine.compiled.kernels.vector_ir import INT, LONG, Vectors

SPINS = 4096
"""Looks at the counter before giving the processor away (some 20 µs): longer than a balanced wait, shorter than what
another process would lose."""

COUNTER = 8
"""int64 in a counter with what lies between it and the next."""

IS_X86 = platform.machine() in ("x86_64", "AMD64")


@intrinsic
def take(context, counter):
    """The next number of the counter at this address: 0, 1, 2, … over all threads."""

    def emit(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], ir.PointerType(LONG))
        return builder.atomic_rmw("add", pointer, ir.Constant(LONG, 1), "seq_cst")

    return types.int64(types.int64), emit


@intrinsic
def finish(context, counter, mine, total):
    """Adds `mine` to the counter of pieces done, and returns when all `total` are."""

    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        counter, mine, total = arguments
        pointer = builder.inttoptr(counter, ir.PointerType(LONG))
        builder.atomic_rmw("add", pointer, mine, "seq_cst")
        spins = v.variable(v.number(0))
        looking, waiting, yielding, met = (
            builder.append_basic_block(name) for name in ("look", "wait", "yield", "met")
        )
        builder.branch(looking)
        builder.position_at_end(looking)
        done = builder.load_atomic(pointer, "acquire", 8)
        builder.cbranch(builder.icmp_signed("<", done, total), waiting, met)
        builder.position_at_end(waiting)
        if IS_X86:
            builder.call(_void_function(builder, "llvm.x86.sse2.pause"), [])
        count = builder.add(builder.load(spins), v.number(1))
        builder.store(count, spins)
        builder.cbranch(builder.icmp_signed(">", count, v.number(SPINS)), yielding, looking)
        builder.position_at_end(yielding)
        builder.call(cgutils.get_or_insert_function(builder.module, ir.FunctionType(INT, []), "sched_yield"), [])
        builder.branch(looking)
        builder.position_at_end(met)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


@intrinsic
def ticks(context):
    """The processor's time-stamp counter; 0 on processors that do not let a program read theirs."""

    def emit(context, builder, signature, arguments):
        if not IS_X86:
            return ir.Constant(LONG, 0)
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(LONG, []), "llvm.readcyclecounter")
        return builder.call(function, [])

    return types.int64(), emit


def _void_function(builder, name):
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), []), name)
