"""The Jupyter Kernel Gateway of one sandbox, with its kernels.

It differs from the stock gateway in five ways: it can listen on a unix socket, or serve connections
that it receives as descriptors; it starts our kernel class; it has no rate limits, which drop output
silently; it serves files, tables, operations, processes and ports; and it exits when its first kernel
or the broker ends. That kernel is never restarted in place. The broker replaces the whole sandbox, so that
nothing of a dead kernel (children, files in /tmp, memory) outlives it. `kernels.py` has the other kernels.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
import tempfile
import traceback
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import NoReturn

import zmq
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from kernel_gateway.gatewayapp import KernelGatewayApp
from tornado.ioloop import IOLoop
from tornado.iostream import IOStream
from tornado.netutil import bind_sockets, bind_unix_socket

from . import (
    export_server,
    file_server,
    kernels,
    operation_server,
    port_server,
    process_server,
    socket_filter,
    watch_server,
)
from .compat.gateway import Connection
from .compat.threads import send_without_threads
from .contract import ALONE_S, EXIT_GATEWAY_FAILED, TOKEN_VARIABLE, WAITING_MESSAGES
from .fencing import FencedServer
from .kernels import KernelSpecs, exit_status
from .proxy_forwarder import Forwarder

ROUTES = [
    *file_server.ROUTES,
    *export_server.ROUTES,
    *process_server.ROUTES,
    *watch_server.ROUTES,
    *port_server.ROUTES,
    *operation_server.ROUTES,
    *kernels.ROUTES,
]
"""The broker's own paths, beside those of the stock gateway."""
READ_BYTES = 256 * 1024
"""The size of one read from a connection: as much as a unix socket holds."""
RECONNECT_MS = 2
"""Between two tries to connect to the kernel's sockets."""
NEXT_BROKER_S = 0.1
"""Between two tries to connect to the next broker."""


status_pipe: int | None = None
"""A pipe of the broker's for the exit status, if the gateway was forked."""


async def exit_after_delivery(status: int) -> None:
    """Wait until a broker has all messages of the kernels, then exit with the first one's status as a shell
    has it.
    """
    await asyncio.gather(*map(Connection.delivered, list(Connection.relays)))
    # The rest of the process belongs to a dead kernel; an orderly shutdown would only wait for it.
    end(exit_status(status))


def end(status: int) -> NoReturn:
    """Exit at once. Whoever started a forked gateway may be gone, so it tells the broker its status."""
    if status_pipe is not None:
        with contextlib.suppress(OSError):
            os.write(status_pipe, bytes([status & 0xFF]))
    os._exit(status)


class Gateway(KernelGatewayApp):
    """The gateway application, serving the sockets that `main` made.

    Attributes:
        sockets: the listening sockets.
        handover: the path of the socket over which the broker sends connections.
        alone: seconds to wait there for the next broker when the broker has died.
    """

    sockets: list[socket.socket]
    handover: Path | None = None
    alone: float = 0.0
    forwarder: Forwarder | None = None

    def init_http_server(self) -> None:
        self.web_app.add_handlers(".*", ROUTES)
        self.http_server = FencedServer(self.web_app, chunk_size=READ_BYTES)
        self.http_server.add_sockets(self.sockets)
        if self.handover is not None:
            self._take_connections(self.handover)

    def _take_connections(self, path: Path) -> None:
        """Serve the connections that a broker sends. Raises OSError if there is no broker."""
        handover = socket.socket(socket.AF_UNIX)
        try:
            handover.connect(str(path))
        except OSError:
            handover.close()
            raise
        handover.setblocking(False)
        IOLoop.current().add_handler(handover, self._take_connection, IOLoop.READ)

    async def _await_next_broker(self) -> None:
        """Serve the next broker, which listens at the same path, or exit if none comes in time."""
        assert self.handover is not None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.alone
        while loop.time() < deadline:
            with contextlib.suppress(OSError):
                return self._take_connections(self.handover)
            await asyncio.sleep(NEXT_BROKER_S)
        sys.stderr.write(f"no broker came back for {self.alone:g} s\n")
        end(EXIT_GATEWAY_FAILED)

    def _take_connection(self, handover: socket.socket, _events: int) -> None:
        """Serve a connection that the broker sends. If it has died, await the next one, or exit."""
        try:
            data, descriptors, _, _ = socket.recv_fds(handover, 1, 1)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            if not self.alone:
                end(EXIT_GATEWAY_FAILED)
            IOLoop.current().remove_handler(handover)
            handover.close()
            IOLoop.current().add_callback(self._await_next_broker)
        for descriptor in descriptors:
            connection = socket.socket(fileno=descriptor)
            connection.setblocking(False)
            connection.set_inheritable(False)  # the kernel must not inherit it
            stream = IOStream(connection, read_chunk_size=READ_BYTES)
            self.http_server.handle_stream(stream, ("", 0))


def main() -> int:
    """Serve until the kernel ends. Returns only if the gateway itself fails."""
    try:
        _serve(_options())
    except BaseException:  # also SystemExit: any other status would be taken for the kernel's
        traceback.print_exc()
    return EXIT_GATEWAY_FAILED


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="kernelbroker_kernel")
    listen = parser.add_mutually_exclusive_group(required=True)
    listen.add_argument("--fd", type=int, help="a listening socket that was inherited")
    listen.add_argument(
        "--handover", type=Path, help="a unix socket over which connections are handed over"
    )
    listen.add_argument("--socket", type=Path, help="a unix socket to make and listen on")
    listen.add_argument("--tcp", metavar="HOST:PORT", help=f"with its token in {TOKEN_VARIABLE}")
    parser.add_argument(
        "--alone",
        type=float,
        default=ALONE_S,
        help="with --tcp: end when no channel has been open for so many seconds; with --handover and "
        "--outlives-broker: end when no broker has come back for so many seconds",
    )
    parser.add_argument(
        "--import", dest="imports", action="append", default=[], help="a module to have loaded"
    )
    parser.add_argument("--outlives-broker", action="store_true", help="go on when the broker ends")
    parser.add_argument("--egress", type=Path, help="a unix socket where a proxy listens")
    parser.add_argument("--status", type=int, help="a pipe that gets the exit status, as a byte")
    return parser.parse_args()


def _serve(options: argparse.Namespace) -> None:
    if options.status is not None:
        global status_pipe
        status_pipe = options.status
        os.set_inheritable(status_pipe, False)
    elif options.handover is not None or options.tcp is not None:
        socket_filter.install()  # in a container; a jail has a stricter one
    send_without_threads()
    # Only this sandbox sees the directory of the kernel's own sockets. ipc is also faster than TCP.
    directory = os.environ["JUPYTER_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="kernel-")
    KernelSpecs.imports = tuple(options.imports)
    kernels.Provisioner.on_first_exit = staticmethod(exit_after_delivery)
    gateway = Gateway.instance(
        kernel_spec_manager_class=KernelSpecs,
        kernel_websocket_connection_class=Connection,
        log_level="ERROR",
    )
    gateway.sockets = _listen(options)
    gateway.handover = options.handover
    gateway.alone = Connection.alone = options.alone if options.outlives_broker else 0.0
    gateway.auth_token = os.environ.pop(TOKEN_VARIABLE, "")  # the kernel would inherit it
    if options.tcp is not None:
        if not gateway.auth_token:
            raise SystemExit(f"--tcp needs a token in {TOKEN_VARIABLE}")
        IOLoop.current().add_callback(_end_when_alone, options.alone)
    if options.egress is not None:
        gateway.forwarder = Forwarder(options.egress)
    gateway.config.KernelManager.transport = "ipc"
    # The stock name, a UUID, would make the path too long for a socket. The length of this one is
    # KERNEL_SOCKET_BYTES.
    gateway.config.KernelManager.ip = f"{directory}/ipc"
    gateway.config.KernelManager.autorestart = False
    # A process that can reach the kernel's sockets can read their key, so signatures protect nothing.
    gateway.config.Session.key = b""
    gateway.log.setLevel(
        "ERROR"
    )  # at its default level, each message becomes a log record that is then dropped
    _register_provisioner()
    gateway.initialize([])
    # The first connections are made while the kernel starts. By default they are tried again after 100 ms.
    gateway.kernel_manager.context.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    gateway.kernel_manager.context.setsockopt(zmq.RCVHWM, WAITING_MESSAGES)
    gateway.start()


def _listen(options: argparse.Namespace) -> list[socket.socket]:
    if options.fd is not None:
        if not options.outlives_broker:
            _end_with(sys.stdout.fileno())  # a pipe that the broker reads
        return [_given(options.fd)]
    if options.handover is not None:
        return []
    if options.socket is not None:
        return [bind_unix_socket(str(options.socket), mode=0o600)]
    host, _, port = options.tcp.rpartition(":")
    return bind_sockets(int(port), host)


def _end_with(connection: int | socket.socket) -> None:
    """Exit when `connection` closes: its other end belongs to the broker, and closes when that dies.

    Otherwise a container would outlive the broker, and so would a jail that is still being set up.
    """
    IOLoop.current().add_handler(connection, lambda *_: end(EXIT_GATEWAY_FAILED), IOLoop.READ)


async def _end_when_alone(seconds: float) -> None:
    """Exit when no channel is open: the broker keeps one open as long as it lives."""
    loop = asyncio.get_running_loop()
    last_seen = loop.time()
    while loop.time() - last_seen < seconds:
        await asyncio.sleep(seconds / 10)
        if Connection.current:
            last_seen = loop.time()
    sys.stderr.write(f"no channel was open for {seconds:g} s\n")
    end(EXIT_GATEWAY_FAILED)


def _given(descriptor: int) -> socket.socket:
    listener = socket.socket(fileno=descriptor)
    listener.setblocking(False)
    listener.set_inheritable(False)  # the kernel must not inherit it
    return listener


def _register_provisioner() -> None:
    """Register the provisioner without an installed entry point, since the package is only on the path."""
    factory = KernelProvisionerFactory.instance()
    factory.default_provisioner_name = "kernelbroker"
    factory.provisioners["kernelbroker"] = EntryPoint(
        "kernelbroker", f"{kernels.__name__}:Provisioner", KernelProvisionerFactory.GROUP_NAME
    )
