"""The Jupyter Kernel Gateway of one sandbox, with its one kernel.

It is the stock gateway but for five things: it can listen on a socket that it was handed (or on a
unix socket), it starts our kernel class, it passes on output without the stock rate limits (which
drop output silently), it serves the workspace's files and the session's tables, and it ends when its
kernel or the broker ends. A kernel is never restarted in place: the broker replaces the whole sandbox,
so that nothing of a dead kernel's (children, files in /tmp, memory) outlives it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
import traceback
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from kernel_gateway.gatewayapp import KernelGatewayApp
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop
from tornado.netutil import bind_sockets, bind_unix_socket

from . import export_server, file_server
from .contract import (
    ALONE_S,
    DROPPED_MIME,
    EXIT_GATEWAY_FAILED,
    MAX_MESSAGE_BYTES,
    TOKEN_VARIABLE,
)
from .egress import Forwarder

DRAIN_QUIET_S = 0.05
"""How long a dead kernel's last messages may take from its sockets to ours (they are local)."""
DRAIN_LIMIT_S = 0.5
"""How long the broker may take to read them."""
READ_BYTES = 256 * 1024
"""Read from a connection at once: as much as a unix socket holds, so that files move fast."""


class KernelSpecs(KernelSpecManager):
    """Knows one kernel, ours, under whatever name is asked for."""

    imports: tuple[str, ...] = ()

    def get_kernel_spec(self, _kernel_name: str) -> KernelSpec:
        argv = [sys.executable, "-m", "kernelbroker_kernel.kernel", "-f", "{connection_file}"]
        argv += [f"--import={name}" for name in self.imports]
        return KernelSpec(argv=argv, display_name="Python 3", language="python")


class Provisioner(LocalProvisioner):
    """Starts the kernel, and ends the gateway as soon as the kernel has ended.

    The stock restarter polls every 3 s, and a request to a dead kernel never gets a reply; a pidfd
    tells within a millisecond.
    """

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        info = await super().launch_kernel(cmd, **kwargs)
        process = self.process
        assert process is not None, "the kernel was launched just now"
        pidfd = os.pidfd_open(process.pid)
        loop = asyncio.get_running_loop()

        def on_exit() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            status = process.wait()
            self.exiting = loop.create_task(exit_after_drain(status))

        loop.add_reader(pidfd, on_exit)
        return info


async def exit_after_drain(status: int) -> None:
    """Pass on what the kernel had sent before it died, then exit with its status, as a shell would."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DRAIN_LIMIT_S
    await asyncio.sleep(DRAIN_QUIET_S)
    while Connection.any_writing() and loop.time() < deadline:  # noqa: ASYNC110  streams do not tell
        await asyncio.sleep(0.01)
    # Everything else here belongs to a kernel that is gone; an orderly shutdown would only wait for it.
    os._exit(128 - status if status < 0 else status)


class Connection(ZMQChannelsWebsocketConnection):
    """The kernel's channels as one WebSocket, without rate limits, and with a bound on one message."""

    @classmethod
    def any_open(cls) -> bool:
        """Whether somebody has the kernel's channels."""
        return bool(cls._open_sockets)

    @classmethod
    def any_writing(cls) -> bool:
        """Whether some peer has not yet taken all that was written to it."""
        websockets = [
            connection.websocket_handler.ws_connection for connection in cls._open_sockets
        ]
        return any(ws and ws.stream and ws.stream.writing() for ws in websockets)

    def connect(self) -> Any:
        # Over TCP, Nagle's algorithm and delayed acknowledgements would cost 40 ms a cell.
        self.websocket_handler.set_nodelay(True)
        connected = super().connect()
        if connected is not None:
            connected.add_done_callback(self._end_bookkeeping)
        return connected

    def _end_bookkeeping(self, _connected: Any) -> None:
        """From here on nobody asks when the kernel was active, which costs a second look at all output."""
        with contextlib.suppress(KeyError):  # the kernel ended meanwhile
            self.multi_kernel_manager.stop_watching_activity(self.kernel_id)

    def _limit_rate(self, _channel: Any, _msg: Any, _parts: Any) -> bool:
        return False

    def _on_zmq_reply(self, stream: Any, parts: Any) -> None:
        if (
            isinstance(parts, list)
            and (size := sum(len(part) for part in parts)) > MAX_MESSAGE_BYTES
        ):
            parts = self._dropped(parts, size)
        super()._on_zmq_reply(stream, parts)

    def _dropped(self, parts: list[Any], size: int) -> list[bytes]:
        """A small message in the place of one too large, for the same cell."""
        header = json.loads(bytes(parts[0]))
        is_output = header.get("msg_type") in {
            "display_data",
            "execute_result",
            "update_display_data",
        }
        header["msg_type"] = "display_data" if is_output else header.get("msg_type")
        content: dict[str, Any] = {"data": {DROPPED_MIME: {"bytes": size}}, "metadata": {}}
        if not is_output:  # a reply: it must still end its cell
            content = {
                "status": "ok",
                "execution_count": None,
                "payload": [],
                "user_expressions": {},
            }
        return [json.dumps(header).encode(), bytes(parts[1]), b"{}", json.dumps(content).encode()]


class Gateway(KernelGatewayApp):
    """The gateway application, listening on sockets that `main` made."""

    sockets: list[socket.socket]
    forwarder: Forwarder | None = None

    def init_http_server(self) -> None:
        self.web_app.add_handlers(".*", [*file_server.ROUTES, *export_server.ROUTES])
        self.http_server = HTTPServer(self.web_app, chunk_size=READ_BYTES)
        self.http_server.add_sockets(self.sockets)


def main() -> int:
    """Serve until the kernel ends. Returns only where the gateway itself failed."""
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
        "--handover", type=Path, help="a unix socket where a listening socket is handed over"
    )
    listen.add_argument("--socket", type=Path, help="a unix socket to make and listen on")
    listen.add_argument("--tcp", metavar="HOST:PORT", help=f"with its token in {TOKEN_VARIABLE}")
    parser.add_argument(
        "--alone",
        type=float,
        default=ALONE_S,
        help="with --tcp: end when no channel has been open for so many seconds",
    )
    parser.add_argument(
        "--import", dest="imports", action="append", default=[], help="a module to have loaded"
    )
    parser.add_argument("--egress", type=Path, help="a unix socket where a proxy listens")
    return parser.parse_args()


def _serve(options: argparse.Namespace) -> None:
    # The kernel's own sockets lie where only this sandbox sees them; ipc is faster than TCP, too.
    directory = os.environ["JUPYTER_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="kernel-")
    KernelSpecs.imports = tuple(options.imports)
    gateway = Gateway.instance(
        kernel_spec_manager_class=KernelSpecs,
        kernel_websocket_connection_class=Connection,
        max_kernels=1,
        log_level="ERROR",
    )
    gateway.sockets = _listen(options)
    gateway.auth_token = os.environ.pop(TOKEN_VARIABLE, "")  # which the kernel would inherit
    if options.tcp is not None:
        if not gateway.auth_token:
            raise SystemExit(f"--tcp needs a token in {TOKEN_VARIABLE}")
        IOLoop.current().add_callback(_end_when_alone, options.alone)
    if options.egress is not None:
        gateway.forwarder = Forwarder(options.egress)
    gateway.config.KernelManager.transport = "ipc"
    # The stock name, a UUID, would be too long for a socket below a plain process' home; this one is
    # KERNEL_SOCKET_BYTES.
    gateway.config.KernelManager.ip = f"{directory}/ipc"
    gateway.config.KernelManager.autorestart = False
    # Who reaches the kernel's sockets can read their key, too: signatures would protect from nobody.
    gateway.config.Session.key = b""
    gateway.log.setLevel(
        "ERROR"
    )  # left as it is, each message would become a record, to be dropped
    _register_provisioner()
    gateway.initialize([])
    gateway.start()


def _listen(options: argparse.Namespace) -> list[socket.socket]:
    if options.fd is not None:
        _end_with(sys.stdout.fileno())  # a pipe that the broker reads
        return [_given(options.fd)]
    if options.handover is not None:
        giver = socket.socket(socket.AF_UNIX)
        giver.connect(str(options.handover))
        _, (descriptor,), _, _ = socket.recv_fds(giver, 1, 1)
        _end_with(giver)
        return [_given(descriptor)]
    if options.socket is not None:
        return [bind_unix_socket(str(options.socket), mode=0o600)]
    host, _, port = options.tcp.rpartition(":")
    return bind_sockets(int(port), host)


def _end_with(connection: int | socket.socket) -> None:
    """Its other end is the broker's, and closes when the broker dies.

    A container would outlive the broker otherwise, and so would a jail that is still being set up.
    """
    IOLoop.current().add_handler(connection, lambda *_: os._exit(EXIT_GATEWAY_FAILED), IOLoop.READ)


async def _end_when_alone(seconds: float) -> None:
    """The broker keeps a channel open as long as both live; containers would outlive it otherwise."""
    loop = asyncio.get_running_loop()
    last_seen = loop.time()
    while loop.time() - last_seen < seconds:
        await asyncio.sleep(seconds / 10)
        if Connection.any_open():
            last_seen = loop.time()
    sys.stderr.write(f"no channel was open for {seconds:g} s\n")
    os._exit(EXIT_GATEWAY_FAILED)


def _given(descriptor: int) -> socket.socket:
    listener = socket.socket(fileno=descriptor)
    listener.setblocking(False)
    listener.set_inheritable(False)  # the kernel has no business with it
    return listener


def _register_provisioner() -> None:
    """Make the provisioner known without an installed entry point: the package is only on the path."""
    factory = KernelProvisionerFactory.instance()
    factory.default_provisioner_name = "kernelbroker"
    factory.provisioners["kernelbroker"] = EntryPoint(
        "kernelbroker", f"{__name__}:Provisioner", KernelProvisionerFactory.GROUP_NAME
    )
