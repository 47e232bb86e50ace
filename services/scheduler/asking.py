"""One request that asks for a place: with what it may have, before which view, at which moment."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from services.core.blocks import BlockNames
from services.core.ids import BlockHash
from services.core.request import Request
from services.scheduler.cluster_view import ClusterView
from services.scheduler.worker_table import WorkerTable

MayUse = Callable[[str], bool]
"""Whether a request may use a worker, by its name."""


Split = Literal["auto", "always", "never"]
"""Whether prompts are computed on a prefill worker: where that is better, where there is one, or nowhere."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a request's placement is bound to, whatever it costs."""

    split: Split = "auto"
    may_use: MayUse | None = None
    """None: any worker."""
    may_fetch: bool = True
    """Whether the prompt's beginning may come from a store."""


@dataclass(frozen=True, slots=True)
class Asking:
    """One request before one view at one moment."""

    request: Request
    view: ClusterView
    names: BlockNames
    now: float
    rules: Rules
    _held: dict[tuple[str, str], Mapping[str, int]] = field(default_factory=dict, init=False, repr=False)

    def held(self, table: WorkerTable) -> Mapping[str, int]:
        """How many of the prompt's first full blocks each store holds that has any; looked up once."""
        fingerprint, kv_format, prefixes = table.kind.fingerprint, table.kind.format, self.view.prefixes
        if (fingerprint, kv_format) not in self._held:
            hashes: Sequence[BlockHash] = ()
            if prefixes.has_any(fingerprint, kv_format):
                hashes = self.names.of(self.request.tokens, bytes.fromhex(fingerprint), table.block_size)
            self._held[fingerprint, kv_format] = prefixes.longest(hashes, fingerprint, kv_format) if hashes else {}
        return self._held[fingerprint, kv_format]

    def hashes(self, table: WorkerTable) -> Sequence[BlockHash]:
        """Of the full blocks before the last known token, which is computed wherever it goes."""
        most = (len(self.request.tokens) - 1) // table.block_size
        return self.names.of(self.request.tokens, bytes.fromhex(table.kind.fingerprint), table.block_size)[:most]
