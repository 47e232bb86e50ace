"""Whether the ports that a cluster is to have are free."""

import socket

from services.cli.errors import CommandError
from services.cli.layout import LOOPBACK, ClusterLayout


def require_free_ports(layout: ClusterLayout) -> None:
    """Raises CommandError for one that is taken."""
    ports = {
        "--http-port": layout.http_port,
        "--grpc-port": layout.grpc_port,
        "--nats-port": layout.nats_port,
    }
    for option, port in ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                raise CommandError(f"port {port} is taken; give another with {option} (0 takes a free one)") from None
