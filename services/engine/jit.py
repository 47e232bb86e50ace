"""How functions of the engine are compiled: by Numba, once per machine and version of the sources, kept on disk.

    inner     a part of what calls it
    outer     called from Python
    native    a kernel by itself, called through its address; compiled only if a model needs it

Kernels are compiled apart because Numba optimizes all that a function calls together with it, over and over on the way
up: one function with all of them takes minutes where they take seconds by themselves.

Numba's own cache notices a change only in the file of the function that is called, and most of a kernel lies in other
files. So the cache's directory is named after all sources that may have a part in compiled code.
"""

import fcntl
import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar, cast

import numba
from numba import types
from numba.core import config

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., object])

_HERE = Path(__file__).parent
_COMPILED = ("jit.py", "compiled/kernels/*.py", "sampling/*.py")
"""Where functions that are compiled, and what they are made of, may stand."""


def cache_directory() -> Path:
    """Where compiled code of these sources is kept; Numba's own setting `NUMBA_CACHE_DIR` moves it."""
    digest = hashlib.blake2b(digest_size=8)
    for path in compiled_sources():
        digest.update(path.relative_to(_HERE).as_posix().encode() + b"\0" + path.read_bytes())
    home = Path(_CHOSEN_DIRECTORY) if _CHOSEN_DIRECTORY else Path.home() / ".cache" / "diptych" / "compiled"
    return home / digest.hexdigest()


def compiled_sources() -> list[Path]:
    """All that compiled code may be made of."""
    return sorted(path for pattern in _COMPILED for path in _HERE.glob(pattern))


def _keep_compiled_code() -> bool:
    try:
        _DIRECTORY.mkdir(parents=True, exist_ok=True)
        config.CACHE_DIR = str(_DIRECTORY)
    except OSError as error:
        log.warning("compiled code cannot be kept (%s); every start compiles anew", error.strerror)
        return False
    return True


_CHOSEN_DIRECTORY: str = config.CACHE_DIR
_DIRECTORY = cache_directory()
_IS_KEPT = _keep_compiled_code()


@contextmanager
def compiling_alone() -> Iterator[None]:
    """For the length of the block no other process of this machine compiles: those that wait find the code ready."""
    if not _IS_KEPT:
        yield
        return
    with (_DIRECTORY / "compiling.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def inner(function: F) -> F:
    """Compiled as a part of whatever calls it."""
    return cast(F, numba.njit(nogil=True, error_model="numpy")(function))


def outer(function: F) -> F:
    """Compiled, kept on disk, and called from Python; it does not hold the interpreter while it runs."""
    return cast(F, numba.njit(nogil=True, error_model="numpy", cache=_IS_KEPT)(function))


def native(function: Callable[..., object], choice: int, numbers: int) -> int:
    """The address of `function(choice, *numbers)`, compiled for this choice, a constant to it; the others are int64.

    The code lives as long as the process.
    """
    signature = types.void(types.literal(choice), *[types.int64] * numbers)
    compiled = numba.cfunc(signature, cache=_IS_KEPT, nopython=True, error_model="numpy")(function)
    _ALIVE.append(compiled)
    return int(compiled.address)


_ALIVE: list[object] = []
"""Compiled kernels: their code goes with the object."""
