"""Creates the gRPC server from the broker's settings."""

from __future__ import annotations

from ..config import ConfigError, Settings
from ..service.tenant_service import TenantServices
from ..telemetry.events import Observer
from ..tenants.keyring import Keyring
from .calls import Calls
from .surface import GrpcSurface


def make_surface(
    settings: Settings,
    tenants: TenantServices,
    keyring: Keyring,
    observer: Observer,
    *,
    takes_over: bool,
) -> GrpcSurface:
    """Return the gRPC server, not started. `grpc.port` is set. Raises ConfigError."""
    tls, certificate = settings.tls, None
    assert settings.grpc.port is not None, "it is on"
    try:
        if tls.certificate is not None and tls.key is not None:
            certificate = (tls.key.read_bytes(), tls.certificate.read_bytes())
        return GrpcSurface(
            settings.host,
            settings.grpc.port,
            Calls(tenants, keyring, observer),
            certificate,
            takes_over=takes_over,
        )
    except OSError as exc:
        raise ConfigError(f"grpc.port {settings.grpc.port}: {exc.strerror}") from exc
