"""The connections to a broker, kept between requests; made through a proxy if the environment names one.

`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` are read as `urllib` reads them, but for an address
of this machine no proxy is used.
"""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import os
import select
import socket
import ssl
import time
from base64 import b64encode
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import unquote, urlsplit

_MOST_IDLE = 10
_IDLE_S = 15.0
"""Shorter than any broker or load balancer keeps an idle connection."""


class Connection:
    """A connection for one request after the other.

    Attributes:
        is_used: a request was sent on it before, so the broker may have closed it meanwhile.
        target: what comes before the path in a request: empty, or the broker's address for a proxy.
        headers: of each request, for the proxy.
    """

    def __init__(
        self,
        http_connection: http.client.HTTPConnection,
        prepare: Callable[[], None],
        target: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        self.http = http_connection
        self.is_used = False
        self.target, self.headers = target, headers or {}
        self.idle_since = 0.0
        self._prepare = prepare

    def prepare(self) -> None:
        """Blocks until requests may be sent. Raises OSError."""
        if not self.is_used:
            self._prepare()

    @property
    def is_open(self) -> bool:
        """Whether the other side seems to wait for a request."""
        sock: socket.socket | None = self.http.sock
        if sock is None or time.monotonic() - self.idle_since > _IDLE_S:
            return False
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return not poll.poll(0)  # nothing is due but the connection's end


class HTTPConnections:
    """The connections to the broker at one address, for all threads and event loops.

    Args:
        url: of the broker.
        tls: makes the TLS settings of an `https` address.
    """

    def __init__(self, url: str, tls: Callable[[], ssl.SSLContext]) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._is_tls = parts.scheme == "https"
        self._port = parts.port or (443 if self._is_tls else 80)
        self._authority = parts.netloc.rpartition("@")[2]
        self._tls = tls
        self._idle: deque[Connection] = deque()
        self._process = os.getpid()

    @property
    def proxy(self) -> str | None:
        """The URL of the proxy that leads to the broker, or None."""
        return _proxy(self._host, self._port, is_tls=self._is_tls)

    async def get(self, timeout: float, *, new: bool = False) -> Connection:
        """Return an idle connection, or a new one. Raises OSError."""
        if self._process != os.getpid():  # they are the parent's, too
            self.close()
            self._process = os.getpid()
        while not new:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            if connection.is_open:
                return connection
            connection.http.close()
        proxy = self.proxy
        route = urlsplit(proxy) if proxy else None
        host, port = (route.hostname or "", route.port or 80) if route else (self._host, self._port)
        async with asyncio.timeout(timeout):
            sock = await _connected_socket(host, port)
        sock.settimeout(timeout)
        credentials: dict[str, str] = {}
        if route and route.username:
            pair = f"{unquote(route.username)}:{unquote(route.password or '')}"
            credentials["Proxy-Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        if not self._is_tls:
            plain = http.client.HTTPConnection(self._host, self._port)
            plain.sock = sock
            target = f"http://{self._authority}" if route else ""
            return Connection(plain, lambda: None, target, credentials)
        context = self._tls()
        encrypted = http.client.HTTPSConnection(self._host, self._port, context=context)
        encrypted.sock = sock

        def prepare() -> None:
            if route:
                _tunnel(sock, f"{self._host}:{self._port}", credentials)
            encrypted.sock = context.wrap_socket(
                sock, server_hostname=self._host, do_handshake_on_connect=False
            )
            encrypted.sock.do_handshake()

        return Connection(encrypted, prepare)

    def put_back(self, connection: Connection) -> None:
        """Keep a connection whose answer was read to its end."""
        connection.is_used = True
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        if len(self._idle) > _MOST_IDLE:
            with suppress(IndexError):  # another thread has taken it
                self._idle.popleft().http.close()

    def close(self) -> None:
        """Close the idle connections. Others may be made later."""
        with suppress(IndexError):
            while True:
                self._idle.pop().http.close()

    def __del__(self) -> None:
        self.close()


def _proxy(host: str, port: int, *, is_tls: bool) -> str | None:
    if not any(name.lower().endswith("_proxy") for name in os.environ) or _is_this_machine(host):
        return None
    from urllib.request import getproxies, proxy_bypass  # it costs 20 ms

    proxies = getproxies()
    proxy = proxies.get("https" if is_tls else "http") or proxies.get("all")
    if not proxy or proxy_bypass(f"{host}:{port}"):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(proxy).scheme != "http" or not urlsplit(proxy).hostname:
        shown = proxy.rpartition("@")[2]
        raise OSError(f"the proxy {shown} of the environment is not one of http://; see NO_PROXY")
    return proxy


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _tunnel(sock: socket.socket, authority: str, headers: dict[str, str]) -> None:
    """Let a proxy connect this socket with the broker."""
    lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    sock.sendall("\r\n".join([*lines, "", ""]).encode())
    response = http.client.HTTPResponse(sock, method="CONNECT")
    try:
        response.begin()
        if response.status != 200:
            raise OSError(f"the proxy refused: {response.status} {response.reason}")
    finally:
        response.close()


async def _connected_socket(host: str, port: int) -> socket.socket:
    """A connected TCP socket; the addresses of the host are tried in turn."""
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    for family, kind, proto, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        sock = socket.socket(family, kind, proto)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, address)
        except OSError as exc:
            sock.close()
            failure = exc
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure or OSError(f"no address for {host}")
