"""Finds the broker.

The address is the argument, else `KERNELBROKER_URL`, else that in the runtime file of a broker of the
same user, else `http://127.0.0.1:8720`. The token is the argument, else `KERNELBROKER_TOKEN`,
else that in the runtime file, which is sent only to the address in that file.

The runtime file has a secret and the address that code is sent to. If another user could have written
or read the file, it is refused with an error, and not ignored.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from ssl import SSLContext, SSLError, create_default_context
from urllib.parse import urlsplit

import msgspec

from .http_connections import HTTPConnections
from .protocol import runtime_file as runtime
from .protocol.errors import ConnectionFailed, Unauthorized

_MAX_FILE_SIZE = 65_536
_NO_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}
)
"""What OpenSSL says of a server that answers without TLS. Its versions differ."""


class _RuntimeFile(msgspec.Struct):
    url: str
    token: str | None = None
    pid: int | None = None


@dataclass(slots=True)
class Address:
    """A broker's address, the token and the TLS settings; for error messages, where they were found.

    Attributes:
        file: the runtime file that the token comes from, or None.
        retries: how often a request is sent again, see `http_request.call`.
        connections: those that are kept between requests.
    """

    url: str
    token: str | None = field(repr=False)
    source: str
    token_source: str = "nowhere"
    ssl: SSLContext | None = field(default=None, repr=False, compare=False)
    file: Path | None = field(default=None, repr=False, compare=False)
    retries: int = field(default=0, repr=False, compare=False)
    connections: HTTPConnections = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.connections = HTTPConnections(self.url, self.ssl_context)

    @property
    def is_tls(self) -> bool:
        return self.url.startswith("https:")

    def ssl_context(self) -> SSLContext:
        """The TLS settings: those given, else Python's defaults."""
        return self.ssl or _default_ssl_context()

    @property
    def websocket_url(self) -> str:
        return f"ws{self.url.removeprefix('http')}/api/v1/ws"

    @property
    def headers(self) -> dict[str, str]:
        own = {"X-Kernelbroker-Client": "sdk"}
        return own | ({"Authorization": f"Bearer {self.token}"} if self.token else {})

    def renew(self, refused: str | None) -> bool:
        """Read the runtime file again, as the broker has refused the token that was there.

        Returns:
            whether there is another token now, so that the request can be sent again.
        """
        if self.file is not None and self.token == refused:
            left = _read(self.file)
            if left is not None and _normal(left.url) == self.url:
                self.token = left.token
        return self.token != refused

    def unreachable(self, reason: object) -> ConnectionFailed:
        """The error for an address where no broker answers."""
        if isinstance(reason, SSLError) and reason.reason in _NO_TLS:
            plain = self.url.replace("https://", "http://", 1)
            return ConnectionFailed(
                f"{self.url} (from {self.source}) answers without TLS: use {plain}"
            )
        reason = str(reason) or repr(reason)
        return ConnectionFailed(
            f"no broker at {self.url} (from {self.source}): {reason}. Is the broker running? "
            "Start one with `make run`, or set KERNELBROKER_URL."
        )

    def unauthorized(self, message: str, request_id: str | None = None) -> Unauthorized:
        """The error for a refused token; it has the source of the token, and its beginning."""
        hint = (
            f"The token that was sent ({self.token[:8]}…) came from {self.token_source}."
            if self.token
            else "No token was found; set KERNELBROKER_TOKEN, or give `token=`."
        )
        return Unauthorized(f"{self.url}: {message.rstrip('.')}. {hint}", request_id=request_id)


def runtime_file() -> Path:
    """Return the path of this user's runtime file, which may not exist."""
    return runtime.runtime_file(os.environ, os.getuid())


def find(
    url: str | None = None,
    token: str | None = None,
    environ: Mapping[str, str] = os.environ,
    ssl: SSLContext | None = None,
    retries: int = 0,
) -> Address:
    """Return the broker's address, in the order that the module describes.

    Args:
        ssl: TLS settings for an `https` address; Python's defaults if not given.
        retries: how often a request is sent again, see `http_request.call`.

    Raises:
        ConnectionFailed: the URL is not one of http or https, `ssl` was given for http, or another user
            could have written or read the runtime file.
    """
    source = "the argument"
    if url is None and (url := environ.get("KERNELBROKER_URL") or None):
        source = "KERNELBROKER_URL"
    token_source, file = "the argument", None
    if token is None and (token := environ.get("KERNELBROKER_TOKEN") or None):
        token_source = "KERNELBROKER_TOKEN"

    if url is None or token is None:
        path = runtime.runtime_file(environ, os.getuid())
        left = _read(path)
        if url is None:
            url, source = (left.url, f"{path}") if left else (runtime.DEFAULT_URL, "the default")
        if token is None and left and _normal(left.url) == _normal(url):
            token, token_source, file = left.token, f"{path}", path
    url = _normal(url)
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise ConnectionFailed(f"{url!r} (from {source}) is not a URL like {runtime.DEFAULT_URL}")
    if ssl is not None and not url.startswith("https:"):
        raise ConnectionFailed(f"{url!r} (from {source}) is not https, so `ssl` has no effect")
    return Address(url, token, source, token_source, ssl, file, retries)


@cache
def _default_ssl_context() -> SSLContext:
    return create_default_context()


def _normal(url: str) -> str:
    return url.rstrip("/")


def _read(path: Path) -> _RuntimeFile | None:
    """The runtime file, or None if it does not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise ConnectionFailed(f"the runtime file {path} cannot be read: {exc}") from exc
    with os.fdopen(descriptor, "rb") as file:
        _check(path, os.fstat(file.fileno()), path.parent.stat())
        data = file.read(_MAX_FILE_SIZE)
    try:
        return msgspec.json.decode(data, type=_RuntimeFile)
    except (msgspec.MsgspecError, UnicodeError) as exc:
        raise ConnectionFailed(f"the runtime file {path} is damaged: {exc}") from exc


def _check(path: Path, file: os.stat_result, directory: os.stat_result) -> None:
    """Check that only this user could have written or read the file."""
    if not stat.S_ISREG(file.st_mode):
        problem = "it is not a regular file"
    elif file.st_uid != os.getuid():
        problem = f"user {file.st_uid} owns it"
    elif file.st_mode & 0o077:
        problem = f"others may use it (mode {stat.S_IMODE(file.st_mode):04o}); it should be 0600"
    elif directory.st_uid != os.getuid() or directory.st_mode & 0o022:
        problem = f"others may write to its directory {path.parent}"
    else:
        return
    raise ConnectionFailed(
        f"the runtime file {path} cannot be trusted: {problem}. "
        "Remove it or correct it, or set KERNELBROKER_URL and KERNELBROKER_TOKEN."
    )
