"""Instruments, declared once as a table; every service exports those it uses on /metrics in Prometheus' format.

Labels come only from configured names, never from what a user sent.
"""

from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from services.core.errors import BY_REASON

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96)


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric: its Prometheus name, kind, help text, label names and the service that has it."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    services: frozenset[str]
    labels: tuple[str, ...] = ()


_GATEWAY = frozenset({"gateway"})
_WORKERS = frozenset({"prefill", "decode"})
_POOLS = _WORKERS | {"kvstore"}
_ALL = _POOLS | {"gateway", "scheduler"}

INSTRUMENTS: tuple[Instrument, ...] = (
    Instrument("diptych_requests_total", "counter", "Requests by outcome.", _GATEWAY, ("outcome",)),
    Instrument("diptych_time_to_first_token_seconds", "histogram", "Receipt to the first text that leaves.", _GATEWAY),
    Instrument("diptych_request_seconds", "histogram", "Receipt to the last message.", _GATEWAY),
    Instrument("diptych_prompt_tokens_total", "counter", "Prompt tokens of finished requests.", _GATEWAY),
    Instrument("diptych_completion_tokens_total", "counter", "Answer tokens of finished requests.", _GATEWAY),
    Instrument("diptych_running", "gauge", "Requests in progress.", _WORKERS | {"scheduler", "gateway"}),
    Instrument("diptych_waiting", "gauge", "Requests that wait for room.", _WORKERS | {"scheduler"}),
    Instrument(
        "diptych_shed_total",
        "counter",
        "Requests turned away for want of room, by traffic class.",
        frozenset({"scheduler"}),
        ("traffic_class",),
    ),
    Instrument("diptych_blocks_total", "gauge", "KV blocks there are.", _POOLS),
    Instrument("diptych_blocks_used", "gauge", "KV blocks held by requests or hand-overs.", _POOLS),
    Instrument("diptych_blocks_cached", "gauge", "KV blocks kept for reuse that can be evicted.", _POOLS),
    Instrument("diptych_waiting_tokens", "gauge", "Prompt tokens yet to be computed.", _WORKERS),
    Instrument("diptych_steps_total", "counter", "Engine steps.", _WORKERS),
    Instrument("diptych_step_seconds", "histogram", "Time of an engine step.", _WORKERS),
    Instrument(
        "diptych_prefix_tokens_total",
        "counter",
        "Prompt tokens by where their KV came from: own cache, a store's, or computed.",
        _WORKERS,
        ("source",),
    ),
    Instrument(
        "diptych_recomputed_tokens_total",
        "counter",
        "Tokens computed although they had been before, by why: lost on their way, resumed elsewhere, preempted.",
        _WORKERS,
        ("reason",),
    ),
    Instrument("diptych_kv_blocks_total", "counter", "KV blocks moved, or not, by way.", _WORKERS, ("way", "outcome")),
    Instrument("diptych_kv_bytes_total", "counter", "Bytes of KV blocks moved.", _WORKERS, ("way", "direction")),
    Instrument("diptych_oldest_holding_seconds", "gauge", "Age of the oldest thing held for a request.", _ALL),
    Instrument("diptych_faults_total", "counter", "Planted faults that struck, in tests.", _ALL, ("seam",)),
)

OUTCOMES = frozenset({"stop", "length", "cancelled"}) | frozenset(BY_REASON)


class Metrics:
    """The instruments of one process."""

    def __init__(self, service: str) -> None:
        self._registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for instrument in INSTRUMENTS:
            if service in instrument.services:
                self._declare(instrument)

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def set(self, name: str, value: float) -> None:
        """Sets a gauge; one that this service does not have is passed over."""
        if gauge := self._gauges.get(name):
            gauge.set(value)

    def observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)

    def exposition(self) -> bytes:
        """All instruments as Prometheus reads them, of type `CONTENT_TYPE`."""
        return generate_latest(self._registry)

    @property
    def registry(self) -> CollectorRegistry:
        return self._registry

    def _declare(self, instrument: Instrument) -> None:
        if instrument.kind == "counter":
            self._counters[instrument.name] = Counter(
                instrument.name, instrument.text, instrument.labels, registry=self._registry
            )
        elif instrument.kind == "gauge":
            self._gauges[instrument.name] = Gauge(
                instrument.name, instrument.text, instrument.labels, registry=self._registry
            )
        else:
            self._histograms[instrument.name] = Histogram(
                instrument.name, instrument.text, instrument.labels, registry=self._registry, buckets=_SECONDS
            )
