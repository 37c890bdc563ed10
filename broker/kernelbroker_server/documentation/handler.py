"""Serves the documentation at /docs. It needs no token, since it has no secrets.

The Content-Security-Policy of a page allows the files of this origin and the inline scripts that the page
was built with, by their digests. No page can send a request to another origin.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from kernelbroker.protocol.errors import NotFound

from ..api.base import Service
from ..api.routes import Route
from ..api.static_files import File, StaticFiles, StaticHandler
from . import sdk_wheel

_HASHED = re.compile(r"\.[0-9a-f]{8}\.min\.(js|css)$")
"""The end of names that change with the content."""
_INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)

_MISSING = """<!doctype html>
<html lang="en">
<meta name="viewport" content="width=device-width">
<title>No such page</title>
<h1>No such page</h1>
<p>The documentation has no page with this address.
<a href="{}">Begin at its first page</a>, which can search.</p>
</html>
"""
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'{scripts}; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_FILE_POLICIES = {
    ".js": "default-src 'none'; script-src 'self'",  # the search's worker loads others
    ".svg": "default-src 'none'; style-src 'unsafe-inline'",  # the styles in a picture
}
_FILE_POLICY = "default-src 'none'"


class Site:
    """The files of the documentation, and the policies of its pages."""

    def __init__(self, directory: Path) -> None:
        self.files = StaticFiles(directory)
        self._page_policy = cache(self._make_page_policy)

    def policy(self, name: str) -> str:
        """Return the Content-Security-Policy of a file, which must exist."""
        suffix = Path(name).suffix
        if suffix == ".html":
            return self._page_policy(name)
        return f"{_FILE_POLICIES.get(suffix, _FILE_POLICY)}; frame-ancestors 'none'"

    def _make_page_policy(self, name: str) -> str:
        page = self.files.get(name)
        assert page is not None
        digests = (hashlib.sha256(each).digest() for each in _INLINE_SCRIPT.findall(page.data))
        sources = (f" 'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
        return _PAGE_POLICY.format(scripts="".join(sources))


class ToFirstPage(StaticHandler):
    def initialize(self, service: Service, site: Site) -> None:  # type: ignore[override] # noqa: ARG002
        super().initialize(service)

    async def get(self) -> None:
        """Send a client to the first page, also behind a proxy that adds a prefix."""
        self.redirect("docs/")

    head = get


class Documentation(StaticHandler):
    def initialize(self, service: Service, site: Site) -> None:  # type: ignore[override]
        super().initialize(service)
        self.site = site

    async def get(self, path: str) -> None:
        """Send a file. The page of a directory is its `index.html`."""
        files = self.site.files
        name = f"{path}index.html" if path == "" or path.endswith("/") else path
        if (file := files.get(name)) is None:
            if f"{name}/index.html" in files.names:
                self.redirect(f"{name.rpartition('/')[2]}/")
                return
            if "index.html" not in files.names:
                raise NotFound("this broker was built without its documentation: run `make docs`")
            if "text/html" in self.request.headers.get("Accept", ""):
                self._send_missing("../" * path.count("/") or "./")
                return
            raise NotFound("the documentation has no such page; see /docs/")
        self.send_file(file, self.site.policy(name), changes=_HASHED.search(name) is None)

    head = get

    def _send_missing(self, first_page: str) -> None:
        """Tell a person that there is no such page."""
        self.set_status(404)
        self.set_page_headers("default-src 'none'; frame-ancestors 'none'", "no-cache")
        self.set_header("Content-Type", "text/html; charset=UTF-8")
        self.finish(_MISSING.format(first_page))


class Wheels(StaticHandler):
    """The SDK for `pip install`, where no index has it: a page that lists the file, and the file."""

    def initialize(self, service: Service, site: Site) -> None:  # type: ignore[override] # noqa: ARG002
        super().initialize(service)

    async def get(self, name: str) -> None:
        own = sdk_wheel.file_name()
        if name == "":
            page = f'<!doctype html><title>Wheels</title><a href="{own}">{own}</a>\n'.encode()
            kind = "text/html; charset=utf-8"
        elif name == own:
            page, kind = await asyncio.to_thread(sdk_wheel.wheel), "application/octet-stream"
        else:
            raise NotFound(f"there is no wheel {name[:100]!r}; there is {own}")
        etag = hashlib.sha256(page).hexdigest()[:20]
        self.send_file(File(kind, page, None, etag), _FILE_POLICY, changes=True)

    head = get


def documentation_routes(directory: Path) -> Sequence[Route]:
    """The paths of the documentation, with their handlers and the handlers' options."""
    options = {"site": Site(directory)}
    return [
        ("/docs", ToFirstPage, options),
        (r"/docs/wheels/(?P<name>[^/]*)", Wheels, options),
        (r"/docs/(?P<path>.*)", Documentation, options),
    ]
