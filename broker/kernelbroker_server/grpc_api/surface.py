"""The gRPC server as a surface of the broker: a port of its own, with reflection and the health service."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

from ..api.routes import Route
from ..supervisor import Supervisor
from .calls import Calls
from .handlers import SERVICE, handlers
from .sandbox_code import SandboxCode

logger = logging.getLogger(__name__)

_MAX_CALLS = 1_000
"""Calls at the same time; more are refused as RESOURCE_EXHAUSTED."""
_GRACE_S = 2.0
"""How long calls may take to end when the broker stops."""
_OPTIONS = (
    ("grpc.max_receive_message_length", 20 * 1024**2),  # a file of the largest size, to edit
    ("grpc.max_concurrent_streams", 128),
    ("grpc.max_connection_idle_ms", 30 * 60_000),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.so_reuseport", 1),  # for a successor, which listens before this broker ends
)


class GrpcSurface:
    """Serves `SandboxCodeService`.

    Args:
        host, port: where it listens.
        certificate: the private key and the certificate chain in PEM; None for plain HTTP/2.
        takes_over: an earlier broker may still listen there.

    Raises:
        OSError: the port cannot be used.
    """

    routes: Sequence[Route] = ()

    def __init__(
        self,
        host: str,
        port: int,
        calls: Calls,
        certificate: tuple[bytes, bytes] | None,
        *,
        takes_over: bool,
    ) -> None:
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._calls = calls
        self._certificate = certificate
        if not takes_over:
            _expect_free(host, port)

    def start(self, supervisor: Supervisor) -> None:
        """Serve in the background."""
        supervisor.start("gRPC", self._run)

    async def _run(self) -> None:
        server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=_MAX_CALLS)
        server.add_generic_rpc_handlers((handlers(SandboxCode(self._calls)),))
        status = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(status, server)
        names = (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
        reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
        if self._certificate is None:
            server.add_insecure_port(self._address)
        else:
            credentials = grpc.ssl_server_credentials([self._certificate])
            server.add_secure_port(self._address, credentials)
        await server.start()
        logger.info("gRPC on %s", self._address)
        try:
            for name in ("", SERVICE):
                await status.set(name, health_pb2.HealthCheckResponse.SERVING)
            await server.wait_for_termination()
        finally:
            await status.enter_graceful_shutdown()
            await server.stop(_GRACE_S)


def _expect_free(host: str, port: int) -> None:
    """Bind the port and give it back: gRPC would share it with another program. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
