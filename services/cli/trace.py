"""`diptych trace`: one request's waterfall, from the running cluster's collector."""

from services.cli.errors import CommandError
from services.cli.record import ClusterRecord
from services.core.errors import WorkerLost
from services.pb import traces_pb2, traces_pb2_grpc
from services.runtime import dial
from services.runtime.edge import remote_errors

LAST = "last"
MARGIN_SECONDS = 5.0


async def fetched(record: ClusterRecord, name: str, wait_seconds: float) -> traces_pb2.Trace:
    """The trace of a trace id, a request id or `last`. Raises NotFound if the collector does not have it (any more)."""
    request = traces_pb2.GetTraceRequest(id="" if name == LAST else name.lower(), wait_seconds=wait_seconds)
    async with dial.channel(record.collector) as channel:
        try:
            with remote_errors():
                return await traces_pb2_grpc.TracesStub(channel).GetTrace(
                    request, timeout=wait_seconds + MARGIN_SECONDS, metadata=dial.call_metadata(record.token)
                )
        except WorkerLost:
            raise CommandError("the collector does not answer; is the cluster stopping?") from None
