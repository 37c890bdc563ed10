"""Serves the console's page, its files, and the frame for HTML of cells. None of them needs a token.

The page keeps its token in the tab, and calls the API with it. Its Content-Security-Policy allows only the
files of this origin: no inline script, no `eval`, no request to any other origin.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from collections.abc import Sequence

from kernelbroker.protocol.errors import NotFound

from ..api.base import Authenticated, Service
from ..api.routes import Route
from .files import ConsoleFiles, File

_HASHED = re.compile(r"-[A-Z0-9]{8}\.(js|css|woff2)$")
"""The end of names that change with the content."""
_YEAR_S = 31_536_000
_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)

_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; frame-src 'self'; manifest-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_FRAME_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; media-src data: blob:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)


class _Served(Authenticated):
    requires_token = False

    def initialize(self, service: Service, files: ConsoleFiles) -> None:  # type: ignore[override]
        super().initialize(service)
        self.files = files

    def file(self, name: str) -> File:
        if (found := self.files.get(name)) is None:
            raise NotFound("the console has no such file; load the page again")
        return found

    def set_own_headers(self, policy: str, caching: str) -> None:
        self.set_header("Content-Security-Policy", policy)
        self.set_header("Cache-Control", caching)
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cross-Origin-Opener-Policy", "same-origin")
        self.set_header("X-DNS-Prefetch-Control", "off")
        self.set_header("Permissions-Policy", "camera=(), geolocation=(), microphone=()")


class Page(_Served):
    async def get(self) -> None:
        """Send the page. Its nonce allows the editor to make style sheets."""
        nonce = secrets.token_urlsafe(16)
        self.set_own_headers(_PAGE_POLICY.format(nonce=nonce), "no-store")
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish(self.file("index.html").data.replace(b"{{nonce}}", nonce.encode()))


class Asset(_Served):
    async def get(self, name: str) -> None:
        """Send a file, compressed if the client accepts that."""
        file = self.file(name)
        is_final = _HASHED.search(name) is not None
        caching = f"public, max-age={_YEAR_S}, immutable" if is_final else "no-cache"
        self.set_own_headers("default-src 'none'; frame-ancestors 'none'", caching)
        self.set_header("Content-Type", file.content_type)
        self.set_header("Vary", "Accept-Encoding")
        self.set_header("ETag", f'"{file.etag}"')
        if self.check_etag_header():
            self.set_status(304)
            return
        accepted = self.request.headers.get("Accept-Encoding", "")
        if file.gzipped is not None and re.search(
            r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))", accepted
        ):
            self.set_header("Content-Encoding", "gzip")
            self.finish(file.gzipped)
        else:
            self.finish(file.data)


class Frame(_Served):
    async def get(self) -> None:
        """Send the frame for HTML of cells: an origin of its own, and no network.

        Scripts of the HTML run only with `?scripts`, which the page asks for when a person wants it.
        """
        file = self.file("frame.html")
        if self.get_query_argument("scripts", None) is None:
            (script,) = _SCRIPT.findall(file.data)
            digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
            scripts = f"'sha256-{digest}'"
        else:
            scripts = "'unsafe-inline' 'unsafe-eval' blob:"
        self.set_own_headers(_FRAME_POLICY.format(scripts=scripts), "no-cache")
        self.set_header("Content-Type", file.content_type)
        self.finish(file.data)


class ToPage(_Served):
    async def get(self) -> None:
        """Send a client to the page."""
        self.redirect("/console")


def console_routes(files: ConsoleFiles) -> Sequence[Route]:
    """The paths of the console, with their handlers and the handlers' options."""
    options = {"files": files}
    return [
        ("/console", Page, options),
        ("/console/", ToPage, options),
        ("/console/frame", Frame, options),
        (r"/console/assets/(?P<name>[A-Za-z0-9_.-]+)", Asset, options),
    ]
