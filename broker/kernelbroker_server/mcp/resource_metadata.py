"""What MCP clients look for to get a token of the operator's issuer (RFC 9728)."""

from __future__ import annotations

from ..api.base import Authenticated, Service
from ..tenants.jwt_tokens import Issuer

WELL_KNOWN = "/.well-known/oauth-protected-resource"


class ResourceMetadata(Authenticated):
    """The protected resource's metadata, for `/mcp` and for each address below it.

    Args (of `initialize`):
        issuer: whose tokens are accepted.
    """

    requires_token = False

    def initialize(self, service: Service, issuer: Issuer) -> None:  # type: ignore[override]
        super().initialize(service)
        self._issuer = issuer

    async def get(self, path: str | None) -> None:
        own = f"{self.request.protocol}://{self.request.host}{path or '/mcp'}"
        is_url = self._issuer.audience.startswith(("https://", "http://"))
        self.reply(
            {
                # Clients ask the issuer for tokens of this audience (RFC 8707).
                "resource": self._issuer.audience if is_url else own,
                "authorization_servers": [self._issuer.issuer],
                "bearer_methods_supported": ["header"],
                "resource_name": "kernelbroker",
            }
        )
