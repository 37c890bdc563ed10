"""The paths of the Jupyter surface."""

from __future__ import annotations

from tornado.web import RequestHandler

from ..api.routes import Route
from ..supervisor import Supervisor
from .channels import Channels
from .handler import UnknownJupyterPath
from .kernels import InterruptKernel, Kernels, OneKernel, ResolvePath, RestartKernel
from .link import KernelLinks
from .notebook_sessions import NotebookSessions, OneNotebookSession
from .path_tokens import PathTokens
from .server_info import Contents, KernelSpecs, Me, OneKernelSpec, Status, Version

PREFIX = r"/jupyter(?:/t/(?P<token>[^/]+))?"
"""Clients that send no header, and keep no query, have the token in the path."""
_KERNEL = r"/api/kernels/(?P<kernel_id>[A-Za-z0-9_.-]{1,64})"
_PATHS: list[tuple[str, type[RequestHandler]]] = [
    ("/api", Version),
    ("/api/status", Status),
    ("/api/me", Me),
    ("/api/kernelspecs", KernelSpecs),
    (r"/api/kernelspecs/(?P<spec>[^/]+)", OneKernelSpec),
    ("/api/kernels", Kernels),
    (_KERNEL, OneKernel),
    (f"{_KERNEL}/interrupt", InterruptKernel),
    (f"{_KERNEL}/restart", RestartKernel),
    (f"{_KERNEL}/channels", Channels),
    ("/api/resolvePath", ResolvePath),
    ("/api/sessions", NotebookSessions),
    (r"/api/sessions/(?P<session_id>[A-Za-z0-9-]{1,64})", OneNotebookSession),
    ("/api/contents", Contents),
]


class JupyterSurface:
    """The kernel server at `/jupyter`."""

    @property
    def routes(self) -> list[Route]:
        """The paths, with their handlers and the handlers' options."""
        options = {"links": KernelLinks(), "path_tokens": PathTokens()}
        named: list[Route] = [(f"{PREFIX}{path}/?", each, options) for path, each in _PATHS]
        return [*named, (f"{PREFIX}(?:/.*)?", UnknownJupyterPath, options)]

    def start(self, supervisor: Supervisor) -> None:
        """Nothing works in the background but the tasks of connections."""
