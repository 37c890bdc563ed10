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
from pathlib import Path

from kernelbroker.protocol.errors import NotFound

from ..api.base import Service
from ..api.routes import Route
from ..api.static_files import File, StaticFiles, StaticHandler

_STATIC = Path(__file__).parent / "static"
"""`npm run build` in `broker/console` makes these files; they are part of this package."""
_HASHED = re.compile(r"-[A-Z0-9]{8}\.(js|css|woff2)$")
"""The end of names that change with the content."""
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


class _Served(StaticHandler):
    def initialize(self, service: Service, files: StaticFiles) -> None:  # type: ignore[override]
        super().initialize(service)
        self.files = files

    def file(self, name: str) -> File:
        if (found := self.files.get(name)) is None:
            raise NotFound("the console has no such file; load the page again")
        return found


class Page(_Served):
    async def get(self) -> None:
        """Send the page. Its nonce allows the editor to make style sheets."""
        nonce = secrets.token_urlsafe(16)
        self.set_page_headers(_PAGE_POLICY.format(nonce=nonce), "no-store")
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish(self.file("index.html").data.replace(b"{{nonce}}", nonce.encode()))


class Asset(_Served):
    async def get(self, name: str) -> None:
        """Send a file, compressed if the client accepts that."""
        policy = "default-src 'none'; frame-ancestors 'none'"
        self.send_file(self.file(name), policy, changes=_HASHED.search(name) is None)


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
        self.set_page_headers(_FRAME_POLICY.format(scripts=scripts), "no-cache")
        self.set_header("Content-Type", file.content_type)
        self.finish(file.data)


class ToPage(_Served):
    async def get(self) -> None:
        """Send a client to the page."""
        self.redirect("/console")


def console_routes() -> Sequence[Route]:
    """The paths of the console, with their handlers and the handlers' options."""
    options = {"files": StaticFiles(_STATIC)}
    return [
        ("/console", Page, options),
        ("/console/", ToPage, options),
        ("/console/frame", Frame, options),
        (r"/console/assets/(?P<name>[A-Za-z0-9_.-]+)", Asset, options),
    ]
