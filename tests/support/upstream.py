"""Servers on a loopback address of a test, on ports 80 and 443, and a resolver that knows them."""

from __future__ import annotations

import secrets
import ssl
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.requires import require

BLOCK = 64 * 1024
_GATE_S = 120.0
"""A test that failed shall not leave a thread behind."""


@dataclass
class Page:
    """
    Attributes:
        gate: the answer comes when this is set.
    """

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    gate: threading.Event | None = None


@dataclass
class Upstream:
    """
    Attributes:
        address: where it listens; nobody else does.
        ca: the file of the certificate that it shows.
        pages: what it serves, by path.
        seen: the requests that came: scheme, method, path, Host and body.
        headers: the header fields of these requests, with names in lower case.
    """

    address: str
    ca: Path
    pages: dict[str, Page] = field(default_factory=dict)
    seen: list[tuple[str, str, str, str, bytes]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def serving_http(directory: Path, *names: str, address: str | None = None) -> Iterator[Upstream]:
    """HTTP on port 80 and HTTPS, with a certificate for these names, on port 443."""
    require("low ports")
    low = secrets.token_bytes(3)
    address = address or f"127.{low[0]}.{low[1]}.{low[2] % 200 + 20}"
    upstream = Upstream(address, directory / "ca.pem")
    key = directory / "key.pem"
    make_certificate(upstream.ca, key, names)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(upstream.ca, key)
    plain = _Server((address, 80), upstream, "http")
    secure = _Server((address, 443), upstream, "https")
    secure.socket = context.wrap_socket(secure.socket, server_side=True)
    threads = [
        threading.Thread(target=server.serve_forever, args=(0.05,)) for server in (plain, secure)
    ]
    for thread in threads:
        thread.start()
    try:
        yield upstream
    finally:
        for server in (plain, secure):
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()


def make_certificate(certificate: Path, key: Path, names: Sequence[str]) -> None:
    """Make a self-signed certificate."""
    require("openssl")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=test", "-keyout", key, "-out", certificate),
            *("-addext", "subjectAltName=" + ",".join(f"DNS:{name}" for name in names)),
        ],
        check=True,
        capture_output=True,
    )


class Names:
    """A resolver for the proxy.

    Attributes:
        addresses: of each name; each question takes the first of several answers, but for the last.
        asked: the names that were looked up.
    """

    def __init__(self, addresses: dict[str, list[Sequence[str]]]) -> None:
        self.addresses = addresses
        self.asked: list[str] = []

    async def __call__(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        answers = self.addresses.get(name)
        if not answers:
            raise OSError("no such name")
        return answers.pop(0) if len(answers) > 1 else answers[0]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, where: tuple[str, int], upstream: Upstream, scheme: str) -> None:
        self.upstream = upstream
        self.scheme = scheme
        super().__init__(where, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients here hang up as they like."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def answer(self) -> None:
        chunked = self.headers.get("Transfer-Encoding") is not None
        size = int(self.headers.get("Content-Length", 0))
        body = b"".join(self._chunks()) if chunked else self.rfile.read(size)
        upstream = self.server.upstream
        seen = (self.server.scheme, self.command, self.path, self.headers["Host"], body)
        upstream.headers.append({name.lower(): value for name, value in self.headers.items()})
        upstream.seen.append(seen)
        page = upstream.pages.get(self.path.partition("?")[0], Page(b"not here", 404))
        if page.gate is not None:
            page.gate.wait(_GATE_S)
        self.send_response(page.status)
        for name, value in {"Content-Length": str(len(page.body)), **page.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    do_GET = do_HEAD = do_POST = do_PUT = answer  # noqa: N815 - the names that http.server wants

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def log_message(self, *args: Any) -> None:
        pass
