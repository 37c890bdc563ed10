"""Authenticates requests by their token."""

from __future__ import annotations

import hmac
import logging

from .tenant import DEFAULT, Tenant, Tenants
from .tokens import TokenError, TokenFile

logger = logging.getLogger(__name__)


class Keyring:
    """All valid tokens.

    Args:
        tenants: all tenants.
        token: the token of the tenant `default`; None if it has none.
        file: the token file; None if there is none.
    """

    def __init__(
        self, tenants: Tenants, token: str | None = None, file: TokenFile | None = None
    ) -> None:
        self.tenants = tenants
        self._token = token
        self._file = file

    def tenant_of(self, token: str) -> Tenant | None:
        """Return the tenant that a token belongs to.

        Returns:
            None if the token is invalid. If the token file cannot be read, its tokens are invalid.
        """
        if self._token is not None and hmac.compare_digest(token.encode(), self._token.encode()):
            return self.tenants[DEFAULT.name]
        try:
            name = self._file.tenant_of(token) if self._file is not None else None
        except TokenError as error:
            logger.error("the token file cannot be used; its tokens are refused: %s", error)
            return None
        return None if name is None else self.tenants[name]
