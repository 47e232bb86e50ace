"""A `Process` inside the test's own event loop, with spans collected in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.runtime.process import Process, new_process
from services.runtime.settings import SettingsT


@asynccontextmanager
async def process_of(
    service: str, settings: SettingsT
) -> AsyncIterator[tuple[Process[SettingsT], InMemorySpanExporter]]:
    """The parts a service is built from, and the spans it makes."""
    process = new_process(service, settings)
    spans = InMemorySpanExporter()
    process.telemetry.add_processor(SimpleSpanProcessor(spans))
    try:
        yield process, spans
    finally:
        await asyncio.to_thread(process.telemetry.shutdown)
    assert not process.telemetry.open_spans(), "every span that started has ended"
