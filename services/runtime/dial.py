"""Channels to other processes: one place for options, so that client and server always agree on them."""

from collections.abc import Sequence

import grpc.aio

PART_BYTES = 1 << 20
"""Bulk bytes travel in parts of this size: larger ones are slower, and all stay far below the message limit."""
MAX_MESSAGE_BYTES = 4 << 20
KEEPALIVE_SECONDS = 20

CHANNEL_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

SERVER_OPTIONS: Sequence[tuple[str, int]] = (
    # Half the client's interval is tolerated, so that a ping that comes early never counts as abuse.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_SECONDS * 500),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_SECONDS * 500),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", KEEPALIVE_SECONDS * 1000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
)


def channel(address: str) -> grpc.aio.Channel:
    """A channel to one process at `host:port`; it connects by itself, and again after a loss."""
    return grpc.aio.insecure_channel(address, options=list(CHANNEL_OPTIONS))


def call_metadata(token: str, traceparent: str = "") -> tuple[tuple[str, str], ...]:
    """Metadata of an internal call: the cluster's token, and the span it is made for."""
    pairs = []
    if token:
        pairs.append(("authorization", f"Bearer {token}"))
    if traceparent:
        pairs.append(("traceparent", traceparent))
    return tuple(pairs)
