"""The filter as a process: an HTTP server on a unix socket that passes calls to the engine's socket.

    python -m engine_filter --data-dir DIR --run-dir DIR

The filter reads a complete request, checks it with `rules`, and writes a new one. No other byte
from the broker reaches the engine. The filter passes the engine's answer back unchanged; an answer
may be endless (events).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from kernelbroker_server.backends.image_names import qualify
from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.netutil import bind_unix_socket
from tornado.web import Application, RequestHandler

from .ping import LISTEN
from .rules import Policy, Refused

log = logging.getLogger("engine_filter")

IMAGES = Path(__file__).resolve().parent.parent / "images.toml"
"""The images of this project: those of sandboxes are allowed."""

_MAX_BODY_BYTES = 1024**2
_MAX_CONNECTIONS = 64
_PIECE_BYTES = 64 * 1024
_CONNECT_TIMEOUT_S = 10


def main(argv: list[str] | None = None) -> int:
    """Parse the arguments and serve until a signal stops the process."""
    options = parse(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s")
    asyncio.run(serve(policy_of(options), options.engine, options.listen))
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="engine_filter", description=__doc__)
    parser.add_argument("--engine", type=Path, default=Path("/var/run/docker.sock"))
    parser.add_argument("--listen", type=Path, default=Path(LISTEN))
    parser.add_argument("--image", action="append", default=[], help="besides those of the list")
    parser.add_argument("--images", type=Path, default=IMAGES, help="the list of images")
    parser.add_argument("--image-prefix", default="", help="the registry of the list's images")
    parser.add_argument("--image-version", default="", help="the tag of the list's images")
    parser.add_argument("--data-dir", type=PurePosixPath, required=True)
    parser.add_argument("--run-dir", type=PurePosixPath, required=True)
    parser.add_argument("--shared", action="append", default=[])
    parser.add_argument("--project", action="append", default=[], help="DIR for ro, or DIR:rw")
    return parser.parse_args(argv)


def policy_of(options: argparse.Namespace) -> Policy:
    """Return the settings of the filter. The list's images of sandboxes are allowed."""
    listed = tomllib.loads(options.images.read_text())["images"]
    names = [*options.image, *(name for name in listed if listed[name]["kind"] == "sandbox")]
    prefix, version = options.image_prefix, options.image_version
    return Policy(
        images=frozenset(qualify(name, prefix, version) for name in names if name),
        data_dir=options.data_dir,
        run_dir=options.run_dir,
        shared=frozenset(filter(None, options.shared)),
        projects={
            each.removesuffix(":rw"): not each.endswith(":rw") for each in options.project if each
        },
    )


async def serve(policy: Policy, engine: Path, listen: Path) -> None:
    """Serve until SIGTERM or SIGINT."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    settings = {
        "policy": policy,
        "engine": engine,
        "connections": asyncio.Semaphore(_MAX_CONNECTIONS),
    }
    application = Application([(".*", Call, settings)], log_function=lambda _handler: None)
    server = HTTPServer(application, max_body_size=_MAX_BODY_BYTES)
    # The broker may run as another user. Only the broker sees the directory.
    server.add_socket(bind_unix_socket(str(listen), mode=0o666))
    log.info("listening on %s; the broker's calls are passed to %s", listen, engine)
    await stopping.wait()
    server.stop()
    listen.unlink(missing_ok=True)  # noqa: ASYNC240 - nothing else runs at this point


class Call(RequestHandler):
    """One request of the broker."""

    def initialize(self, policy: Policy, engine: Path, connections: asyncio.Semaphore) -> None:
        self._policy = policy
        self._engine = engine
        self._connections = connections

    async def _pass(self) -> None:
        request = self.request
        method, target = str(request.method), str(request.uri)
        try:
            target, body = self._policy.check(method, target, request.body)
        except Refused as error:
            # Only this header is copied: the others may be hostile.
            log.warning("refused: %s %.200r: %s", method, target.partition("?")[0], error)
            self._answer(403, f"refused by kernelbroker's engine filter: {error}")
            return
        async with self._connections:
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    reader, writer = await asyncio.open_unix_connection(str(self._engine))
            except (OSError, TimeoutError) as error:
                self._answer(
                    502,
                    f"the container engine cannot be reached: {error}. Start it, or check --engine",
                )
                return
            try:
                writer.write(_head(method, target, body) + body)
                await self._pass_back(reader)
            finally:
                writer.close()

    async def _pass_back(self, reader: asyncio.StreamReader) -> None:
        """Pass the engine's answer back until it ends or the client disconnects."""
        stream = self.detach()

        async def copy() -> None:
            with contextlib.suppress(StreamClosedError, OSError):  # a side has disconnected
                while piece := await reader.read(_PIECE_BYTES):
                    await stream.write(piece)

        copying = asyncio.ensure_future(copy())

        def leave() -> None:
            copying.cancel()

        stream.set_close_callback(leave)
        try:
            await asyncio.wait({copying})
        finally:
            copying.cancel()
            stream.close()

    def _answer(self, status: int, message: str) -> None:
        self.set_status(status)
        self.finish({"message": message})  # the format of the engine's own errors

    get = post = put = delete = head = options = patch = _pass


def _head(method: str, target: str, body: bytes) -> bytes:
    fields: Mapping[str, str] = {
        "Host": "engine",
        "Connection": "close",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
    }
    lines = [f"{method} {target} HTTP/1.1", *(f"{key}: {value}" for key, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("ascii")


if __name__ == "__main__":
    sys.exit(main())
