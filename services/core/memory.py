"""What a process's memory is used for: what its engine has, and the rest."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Bytes of an engine that are resident in host memory, by kind; no byte is in two kinds."""

    weights_mapped: int = 0
    """Pages of files, which every process that maps them shares."""
    weights_private: int = 0
    kv: int = 0
    """Of the KV cache: the system gives a block memory when it is first written."""
    kv_reserved: int = 0
    """The whole KV cache, or the whole arena, resident or not; no part of the sum."""
    step: int = 0
    """Buffers that are kept from step to step: rows, logits, scratch, tables of rotations."""
    device: int = 0
    """On a GPU; no part of the sum."""

    @property
    def mapped(self) -> int:
        return self.weights_mapped

    @property
    def private(self) -> int:
        return self.weights_private + self.kv + self.step


@dataclass(frozen=True, slots=True)
class Resident:
    """A process's resident bytes as the system counts them."""

    total: int
    """Counted for the process as a whole, apart from the two others."""
    files: int
    """Pages of mapped files."""
    shared: int
    """Pages of memory that other processes may have mapped too."""
    anonymous: int
    """All other pages."""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Where a process's resident bytes are."""

    resident: int
    engine: EngineMemory
    arena: int
    """Of a kvstore's arena, what this process has touched; the pages are the same in all processes of the machine."""
    code: int
    """Mapped files that are no weights: programs and libraries."""
    heap: int
    """The rest: objects of the interpreter, code compiled into memory, stacks, what the C heap keeps."""

    @classmethod
    def of(cls, engine: EngineMemory, resident: Resident) -> Self:
        """An engine that claims more than there is leaves nothing for the rest, and the parts exceed the whole."""
        return cls(
            resident.total,
            engine,
            arena=resident.shared,
            code=max(0, resident.files - engine.mapped),
            heap=max(0, resident.anonymous - engine.private),
        )

    @property
    def parts(self) -> int:
        """The sum of all kinds, to be compared with `resident`."""
        return self.engine.mapped + self.engine.private + self.arena + self.code + self.heap
