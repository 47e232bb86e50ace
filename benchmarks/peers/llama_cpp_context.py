"""One llama.cpp context through its C interface: sequences, a batch, logits.

Flash attention is on and every sequence has a KV cache of its own (not "unified"): the quicker choices on a CPU.
"""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass

import llama_cpp
import numpy as np
import numpy.typing as npt

BATCH = 2048
"""Most tokens handed over in one call; llama.cpp computes them in parts of `ubatch`."""
FLASH_ATTENTION_ON = 1


@dataclass(frozen=True, slots=True)
class Shape:
    """What a context has room for."""

    sequences: int
    tokens: int
    """Of each sequence."""
    ubatch: int


@dataclass(frozen=True, slots=True)
class Row:
    """A token at its place."""

    token: int
    position: int
    sequence: int
    wants_logits: bool


class Context:
    """Freed with `close`. RuntimeError if llama.cpp refuses."""

    def __init__(self, model: llama_cpp.llama_model_p, shape: Shape, threads: int) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = shape.sequences * shape.tokens
        params.n_batch = BATCH
        params.n_ubatch = shape.ubatch
        params.n_seq_max = shape.sequences
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = FLASH_ATTENTION_ON
        params.kv_unified = False
        self._context = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError("llama.cpp made no context")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)

    def clear(self) -> None:
        """Forgets all sequences."""
        llama_cpp.llama_memory_clear(self._memory, False)

    def decode(self, rows: Iterable[Row]) -> list[int]:
        """Computes the rows; returns those of them that have logits, by their place in the call."""
        batch = self._batch
        wanted = []
        at = -1
        for at, row in enumerate(rows):
            batch.token[at] = row.token
            batch.pos[at] = row.position
            batch.n_seq_id[at] = 1
            batch.seq_id[at][0] = row.sequence
            batch.logits[at] = row.wants_logits
            if row.wants_logits:
                wanted.append(at)
        batch.n_tokens = at + 1
        if llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError("llama.cpp could not decode")
        return wanted

    def logits(self, at: int) -> npt.NDArray[np.float32]:
        """Of row `at` of the last call: a view, valid until the next."""
        pointer = llama_cpp.llama_get_logits_ith(self._context, at)
        return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (self._vocab,))

    def best(self, at: int) -> int:
        return int(self.logits(at).argmax())
