"""How fast a processor multiplies whole numbers of 16 bits, with all operands at hand: the limit of our linear layers.

Twelve independent sums in registers, one operand from the first-level cache as in a matrix product, the engine's own
vector operation; nothing is decoded, scaled or stored.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from services.engine.compiled.kernels.vector_ir import INT, INTS, LANES, WORDS, Vectors
from services.engine.jit import outer

SUMS = 12
OPERATIONS = SUMS * LANES * 4
"""A turn of the loop: in each lane two products and two additions."""
TURNS = 4_000_000
OPERANDS = 1024


@intrinsic
def _multiply(context, operands, turns):
    def emit(context, builder, signature, arguments):
        v = Vectors(builder)
        operands, turns = arguments
        weights = v.load(WORDS, operands)
        sums = [v.variable(v.ints(0)) for _ in range(SUMS)]
        with v.loop(turns) as loop:
            place = builder.and_(loop.index, v.number(OPERANDS // 2 - 1))
            here = v.at(operands, v.times(place, 4))
            for number, slot in enumerate(sums):
                x = v.spread_pair(v.load(INT, v.at(here, 4 * number)))
                builder.store(v.add_products(builder.load(slot), weights, x), slot)
        total = v.ints(0)
        for slot in sums:
            total = builder.add(total, builder.load(slot))
        return builder.extract_element(total, ir.Constant(INT, 0))

    assert INTS.count == LANES
    return types.int32(types.int64, types.int64), emit


@outer
def _turns(operands, turns):
    return _multiply(np.int64(operands.ctypes.data), np.int64(turns))


def operations_per_second(threads: int) -> float:
    """Multiplications and additions, of all threads at once."""
    operands = np.ones(2 * OPERANDS, np.int16)
    _turns(operands, 1)
    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        list(pool.map(lambda _: _turns(operands, TURNS), range(threads)))
        return threads * TURNS * OPERATIONS / (time.perf_counter() - began)
