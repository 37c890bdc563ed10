"""The base of the handlers: tokens as Jupyter's servers take them, and errors as they give them."""

from __future__ import annotations

from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.errors import NotFound
from kernelbroker.protocol.messages import ErrorBody

from ..api.base import ApiHandler, Authenticated, Service
from ..api.credentials import bearer_token
from .link import KernelLinks
from .path_tokens import PathTokens

_STATUS = {401: 403, 410: 404}
"""Jupyter's servers refuse a wrong token with 403, and do not know a kernel that has ended."""


_POLICY = "frame-ancestors 'self'; report-uri /jupyter/api/security/csp-report; default-src 'none'"
"""As Jupyter's servers have it: an answer is no page."""


class JupyterHandler(Authenticated):
    """A request of a Jupyter client. Its token is in a header, the query, or the path.

    Args (of `initialize`):
        links: the connected clients of all sessions.
        path_tokens: what was valid in paths.
    """

    client = "jupyter"
    links: KernelLinks

    def initialize(  # type: ignore[override]
        self, service: Service, links: KernelLinks, path_tokens: PathTokens
    ) -> None:
        super().initialize(service)
        self.links, self.path_tokens = links, path_tokens
        self.request.path = f"/jupyter: {type(self).__name__}"  # it is logged, and may hold a token

    def authenticate(self) -> None:
        super().authenticate()
        if token := self.path_kwargs.get("token"):
            self.path_tokens.remember(self.path_tokens.find(token))

    def given_token(self) -> str:
        # Jupyter's gateway client sends a header in any case, with the token "None" if it has none.
        if token := self.path_kwargs.get("token"):
            return self.path_tokens.find(token)
        if token := self.get_query_argument("token", ""):
            return token
        scheme, _, token = self.request.headers.get("Authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "token" else bearer_token(self.request.headers)

    def error_status(self, error: BaseException | None, default: int) -> int:
        status = super().error_status(error, default)
        return _STATUS.get(status, status)

    def encode_error(self, status: int, body: ErrorBody) -> bytes:  # noqa: ARG002
        return encode({"message": body.message, "reason": None, "code": body.code})

    def challenge(self) -> str:
        return "token"


class JupyterApiHandler(JupyterHandler, ApiHandler):
    """A REST call of a Jupyter client."""

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Content-Security-Policy", _POLICY)


class UnknownJupyterPath(JupyterApiHandler):
    """A path that a kernel server does not have."""

    def prepare(self) -> None:
        super().prepare()
        if not self._finished:
            raise NotFound(
                "this is a server of kernels: it has /api/kernels, /api/kernelspecs, /api/sessions, "
                "/api/status and /api/me"
            )
