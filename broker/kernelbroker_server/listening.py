"""Opens the listening sockets of a broker."""

from __future__ import annotations

import errno
import socket

from tornado.netutil import bind_sockets

from .config import ConfigError, Settings


def listen(settings: Settings) -> list[socket.socket]:
    """Open the listening sockets. Raises ConfigError if the address is in use or invalid."""
    try:
        return bind_sockets(settings.port, settings.host)
    except OSError as exc:
        advice = (
            "Another broker may run there: end it, or set KERNELBROKER_PORT (0 takes a free port)"
            if exc.errno == errno.EADDRINUSE
            else "Set KERNELBROKER_HOST, or KERNELBROKER_PORT"
        )
        raise ConfigError(
            f"cannot listen on {settings.host}, port {settings.port}: {exc.strerror}. {advice}"
        ) from exc


def url_of(settings: Settings, listener: socket.socket, *, is_tls: bool) -> str:
    """Return the URL for clients."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if is_tls else 'http'}://{host}:{listener.getsockname()[1]}"
