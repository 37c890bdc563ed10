"""Authenticates requests by their token."""

from __future__ import annotations

import contextlib
import hmac
import logging
from typing import TYPE_CHECKING

from ..supervisor import Supervisor
from .tenant import DEFAULT, Tenant, Tenants
from .tokens import TokenError, TokenFile

if TYPE_CHECKING:
    from .jwt_tokens import JwtTokens

logger = logging.getLogger(__name__)

_SETTINGS_USER = "default"
"""The user of the token in the settings."""


class Keyring:
    """All valid tokens.

    Args:
        tenants: all tenants.
        token: the token of the tenant `default`; None if it has none.
        file: the token file; None if there is none.
        jwt: the tokens of an issuer; None if there is none.
    """

    def __init__(
        self,
        tenants: Tenants,
        token: str | None = None,
        file: TokenFile | None = None,
        jwt: JwtTokens | None = None,
    ) -> None:
        self.jwt = jwt
        self.tenants = tenants
        self._token = token
        self._file = file

    def start(self, supervisor: Supervisor) -> None:
        """Keep the keys of the issuer up to date, in the background."""
        if self.jwt is not None:
            supervisor.start("keys of JWTs", self.jwt.keep_keys)

    def tenant_of(self, token: str) -> Tenant | None:
        """Return the tenant that a token belongs to, with the token's name and right.

        Returns:
            None if the token is invalid. If the token file cannot be read, its tokens are invalid.
        """
        if self._token is not None and hmac.compare_digest(token.encode(), self._token.encode()):
            return self._caller(DEFAULT.name, _SETTINGS_USER, operator=True)
        try:
            record = self._file.find(token) if self._file is not None else None
        except TokenError as error:
            logger.error("the token file cannot be used; its tokens are refused: %s", error)
            return None
        if record is not None:
            return self._caller(record.tenant, record.name or record.id, operator=record.operator)
        name = None if self.jwt is None else self.jwt.tenant_of(token)
        if self.jwt is None or name is None:
            return None
        limits = self.tenants[name].limits
        # Without a prefix a claim can name any tenant, so none of them makes an operator.
        return Tenant(name, limits, name, bool(self.jwt.issuer.tenant_prefix) and limits.operator)

    def refusal_of(self, token: str) -> str:
        """Why a token that `tenant_of` refuses is refused, and how to get one."""
        advice = "the broker prints one when it starts, and `kernelbroker-server token create` makes others"
        if not token:
            return f"no token was sent; {advice}"
        with contextlib.suppress(TokenError):
            if self._file is not None and self._file.has_expired(token):
                return f"the token has expired; {advice}"
        return f"the token is wrong or was revoked; {advice}"

    def _caller(self, tenant: str, user: str, *, operator: bool = False) -> Tenant:
        limits = self.tenants[tenant].limits
        return Tenant(tenant, limits, user, operator or limits.operator)
