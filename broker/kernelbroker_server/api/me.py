"""What a token is: its tenant, its name and its right."""

from __future__ import annotations

import msgspec

from .base import ApiHandler
from .openapi import operation


class Me(msgspec.Struct, kw_only=True):
    """`templates` are those that the tenant may use."""

    tenant: str
    user: str
    operator: bool
    version: str
    templates: list[str]


class WhoAmI(ApiHandler):
    @operation({200: Me})
    async def get(self) -> None:
        """Get what the token of the request is."""
        self.reply(
            Me(
                tenant=self.caller.name,
                user=self.caller.user,
                operator=self.caller.operator,
                version=self.service.version,
                templates=sorted(self.tenant.pools),
            )
        )
